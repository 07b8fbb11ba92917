"""What `snm train --tune` chooses and brings on the beginning of a corpus.

    python benchmarks/tune.py CORPUS [PRESET ...] [--words N] [--seconds N] [--json FILE]

CORPUS is a folder with train, valid and test text, as for `quality.py`. Settings for the first N words of the training
text are chosen by the valid text. Perplexities are those of the valid and test text, with the default and the chosen
settings.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from common import first_words, report, text_of

import snm
from snm.text.encoding import encode_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("presets", nargs="*", default=["small", "medium"])
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        text = first_words(text_of(options.corpus, "train"), options.words, Path(name) / "text")
        valid = text_of(options.corpus, "valid")
        for preset in options.presets:
            settings = snm.Settings(features=preset)
            tuned = snm.tune([text], settings, seconds=options.seconds, dev=[valid], notify=print)
            for chosen in (settings, tuned.settings):
                with snm.train(text, Path(name) / "model", chosen, force=True) as model:
                    found = {
                        part: model.perplexity(encode_files(text_of(options.corpus, part), model.vocabulary)).ppl
                        for part in ("valid", "test")
                    }
                what = "default" if chosen is settings else ", ".join(f"{k} {v}" for k, v in tuned.chosen.items())
                rows.append({"preset": preset, "settings": what, **found})
    report("tune", options.corpus.name, rows, options.json)


if __name__ == "__main__":
    main()
