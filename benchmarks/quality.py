"""Perplexity of presets on a corpus, as trained by `snm train` with nothing but the preset named.

    python benchmarks/quality.py CORPUS [PRESET ...] [--baseline VALID TEST] [--json FILE]

CORPUS is a folder with train, valid and test text (`train.txt`, or `.txt.xz` and the like). The baseline
is another model's perplexity on the same text and vocabulary, for the ratios. Every model is also verified:
the sum of P(w | h) over the whole vocabulary after 1,000 contexts of the test text.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import report


def snm(*arguments: str) -> Any:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "snm.cli", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def text_of(corpus: Path, part: str) -> str:
    (found,) = corpus.glob(f"{part}.txt*")
    return str(found)


def measure(corpus: Path, preset: str, folder: str, baseline: tuple[float, float] | None) -> dict[str, Any]:
    """One row of the table."""
    model = f"{folder}/{preset}"
    begun = time.perf_counter()
    trained = snm("train", text_of(corpus, "train"), "-o", model, "--preset", preset)
    seconds = time.perf_counter() - begun
    row: dict[str, Any] = {
        "preset": preset,
        "links": trained["links"],
        "bytes a link": trained["bytes"] / trained["links"],
    }
    for index, part in enumerate(("valid", "test")):
        row[part] = snm("ppl", model, text_of(corpus, part))["ppl"]
        if baseline:
            row[f"{part} / baseline"] = row[part] / baseline[index]
    sums = snm("verify", model, text_of(corpus, "test"))
    return {**row, "contexts": sums["contexts"], "worst |sum - 1|": sums["worst"], "seconds to train": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("presets", nargs="*", default=["snm5", "snm10-skip"])
    parser.add_argument("--baseline", nargs=2, type=float, metavar=("VALID", "TEST"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(options.corpus, preset, folder, options.baseline) for preset in options.presets]
    report("quality", options.corpus.name, rows, options.json)


if __name__ == "__main__":
    main()
