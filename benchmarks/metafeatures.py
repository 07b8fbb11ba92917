"""What metafeatures beyond the paper's bring: diversity, continuation counts, and one of a user's own.

    python benchmarks/metafeatures.py CORPUS [PRESET] [--words N] [--json FILE]

CORPUS is a folder with train, valid and test text, as for `quality.py`; models are trained on the first N words. `own`
is the last two letters of the target. Perplexities are those of the valid text, without a gate and with one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from common import first_words, report, text_of

import snm
from snm.text.encoding import encode_files

TRIED = (
    "lean",
    "lean, type+diversity+link-count",
    "type+feature-count+diversity+link-count, type+target+link-count, feature, feature+target",
    "lean, type+continuation+link-count",
    "lean, type+feature-count+continuation",
    "lean, type+own+link-count",
)


@snm.metafeature("own")
def own(vocabulary: snm.Vocabulary, types: list[Any]) -> np.ndarray:
    """The last two letters of the target."""
    return np.array([zlib.crc32(word[-2:].encode()) for word in vocabulary.words])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("preset", nargs="?", default="small")
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        text = first_words(text_of(options.corpus, "train"), options.words, Path(name) / "text")
        for names in TRIED:
            row: dict[str, Any] = {"metafeatures": names}
            for what, gate in (("without a gate", 0), ("with a gate", 64)):
                begun = time.perf_counter()
                training = snm.TrainingSettings(metafeatures=snm.MetafeatureSet.parse(names))
                settings = snm.Settings(features=options.preset, training=training, gate=gate, folds=0, engine="cpu")
                with snm.train(text, Path(name) / "model", settings, force=True) as model:
                    row["s"] = time.perf_counter() - begun
                    valid = encode_files(text_of(options.corpus, "valid"), model.vocabulary)
                    row[what] = model.perplexity(valid).ppl
            rows.append(row)
            print(row, flush=True)
    report("metafeatures", options.corpus.name, rows, options.json)


if __name__ == "__main__":
    main()
