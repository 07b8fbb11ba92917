"""Perplexity on a corpus with the default settings of `snm train`, beside Kneser-Ney's.

    python benchmarks/quality.py CORPUS [MODEL ...] [--dev] [--json FILE]

CORPUS is a folder with train, valid and test text (`train.txt`, or `.txt.xz` and the like). A MODEL is a preset, with
options of `snm train` after a colon: `snm10-skip`, `"snm10-skip:--events 50000000"`. Ratios are to `--model kn`, order
5, which equals KenLM's `lmplz -o 5` in all printed digits. With --dev, training uses the valid text as held-out text;
otherwise a slice of the training text. Each model is also verified: P(w | h) is summed over the vocabulary for 1,000
contexts of the test text.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import report, text_of


def snm(*arguments: str | Path) -> Any:
    """Run a command; return what it prints as JSON."""
    command = [sys.executable, "-m", "snm", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def measure(corpus: Path, name: str, options: list[str], folder: str) -> dict[str, Any]:
    """A row of the table."""
    begun = time.perf_counter()
    model = f"{folder}/model"
    trained = snm("train", text_of(corpus, "train"), "-o", model, "--force", *options)
    seconds = time.perf_counter() - begun
    row = {"model": name, "links": trained["links"], "bytes a link": trained["bytes"] / trained["links"]}
    row |= {part: snm("ppl", model, text_of(corpus, part))["ppl"] for part in ("valid", "test")}
    sums = snm("verify", model, text_of(corpus, "test"))
    return {**row, "worst |sum - 1|": sums["worst"], "seconds to train": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("models", nargs="*", default=["small", "snm10-skip", "medium", "large"])
    parser.add_argument("--dev", action="store_true", help="train with the valid text as held-out text")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dev = ["--dev", str(text_of(options.corpus, "valid"))] if options.dev else []
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(options.corpus, "Kneser-Ney, order 5", ["--model", "kn"], folder)]
        for name in options.models:
            preset, _, more = name.partition(":")
            rows.append(measure(options.corpus, name, ["--preset", preset, *shlex.split(more), *dev], folder))
    for row in rows:
        row |= {f"{part} / KN5": row[part] / rows[0][part] for part in ("valid", "test")}
    report("quality", options.corpus.name, rows, options.json)


if __name__ == "__main__":
    main()
