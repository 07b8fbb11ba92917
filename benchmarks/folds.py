"""What a gate brings that is learned from folds of the text, instead of a slice that is held out.

    python benchmarks/folds.py CORPUS [PRESET ...] [--words N] [--folds N ...] [--json FILE]

CORPUS is a folder with train, valid and test text, as for `quality.py`; models are trained on the first N words.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from common import first_words, report, text_of

import snm
from snm.text.encoding import encode_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("presets", nargs="*", default=["small", "medium"])
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 2, 4])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        text = first_words(text_of(options.corpus, "train"), options.words, Path(name) / "text")
        for preset in options.presets:
            for folds in options.folds:
                begun = time.perf_counter()
                settings = snm.Settings(features=preset, folds=folds)
                with snm.train(text, Path(name) / "model", settings, force=True) as model:
                    seconds = time.perf_counter() - begun
                    found = {
                        part: model.perplexity(encode_files(text_of(options.corpus, part), model.vocabulary)).ppl
                        for part in ("valid", "test")
                    }
                    events = model.manifest["gate"]["events"]
                rows.append({"preset": preset, "folds": folds, "events of the gate": events, **found, "s": seconds})
                print(rows[-1], flush=True)
    report("folds", options.corpus.name, rows, options.json)


if __name__ == "__main__":
    main()
