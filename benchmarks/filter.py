"""Filtering a file end to end, beside the rate at which the same model scores the same text that is in memory; and
scoring lines, beside KenLM's query.

    python benchmarks/filter.py MODEL TEXT [--threads 1 2] [--times 5] [--lines 50000] [--kenlm BINARY]
                                [--query PROGRAM] [--json FILE]

Filtering opens no model: it is what a filter of a large file does all the time. It reads, scores, keeps half and
writes, from plain text, gz, zst, JSON lines and, with pyarrow, Parquet, to the same format. The rate of a core is
tokens a second over the number of threads. Scoring and filtering take turns; the fastest run of each counts. `snm
score` and KenLM's query (on its own model, --kenlm) are timed as commands on the first lines of the text, minus the
time of ten lines.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, report

import snm
from snm.layouts.tokens import BEGIN
from snm.text.encoding import encode_files


def inputs(text: Path, folder: Path) -> dict[str, Path]:
    """The text in each format."""
    data = text.read_bytes()
    made = {"text": text, "gz": folder / "in.gz", "JSON lines": folder / "in.jsonl"}
    made["gz"].write_bytes(gzip.compress(data))
    lines = data.decode().split("\n")[:-1]
    with open(made["JSON lines"], "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": line, "id": i}) + "\n" for i, line in enumerate(lines))
    if importlib.util.find_spec("zstandard"):
        import zstandard

        made["zst"] = folder / "in.zst"
        made["zst"].write_bytes(zstandard.ZstdCompressor().compress(data))
    if importlib.util.find_spec("pyarrow"):
        import pyarrow.parquet

        made["Parquet"] = folder / "in.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"text": lines, "id": range(len(lines))}), made["Parquet"])
    return made


def fastest(times: int, *runs: Callable[[], float]) -> list[float]:
    """The highest rate of each of some measurements that take turns."""
    return np.max([[run() for run in runs] for _ in range(times)], axis=0).tolist()


def filters(model: snm.LanguageModel, text: Path, threads: list[int], times: int, folder: Path) -> list[dict[str, Any]]:
    tokens = encode_files([text], model.vocabulary).tokens
    events = int(np.count_nonzero(tokens != BEGIN))

    def scoring() -> float:
        begun = time.perf_counter()
        model.probabilities(tokens)
        return events / (time.perf_counter() - begun)

    def filtering(path: Path, n: int) -> Callable[[], float]:
        out = folder / f"out{path.suffix}"
        return lambda: events / snm.filter_text(model, path, out, max_ppl=limit, threads=n).seconds / n

    limit = snm.filter_text(model, text, None).quantiles["50%"]
    rows = []
    for what, path in inputs(text, folder).items():
        for n in threads:
            alone, whole = fastest(times, scoring, filtering(path, n))
            row = {"what": f"filter, {what}", "threads": n, "M tokens/s a core": whole / 1e6}
            rows.append({**row, "scoring alone, one thread": alone / 1e6, "ratio": whole / alone})
    exact = fastest(times, scoring, lambda: events / snm.filter_text(
        model, text, folder / "out", keep=0.5, resume=True).seconds)  # fmt: skip
    row = {"what": "filter, text, --keep 50% --resume", "threads": 1, "M tokens/s a core": exact[1] / 1e6}
    rows.append({**row, "scoring alone, one thread": exact[0] / 1e6, "ratio": exact[1] / exact[0]})
    return rows


def commands(options: argparse.Namespace, folder: Path) -> None:
    """Print the seconds that `snm score` and KenLM's query take for the first lines."""
    lines = options.text.read_text(encoding="utf-8").split("\n")[: options.lines]
    few, many = folder / "few.txt", folder / "many.txt"
    few.write_text("\n".join(lines[:10]) + "\n", encoding="utf-8")
    many.write_text("\n".join(lines) + "\n", encoding="utf-8")
    ours: list[Any] = [sys.executable, "-m", "snm", "score", options.model]
    programs = {"snm score --threads 1": [*ours, "FILE", "--threads", "1"]}
    if options.kenlm:
        programs["KenLM's query"] = [options.query, "-v", "sentence", options.kenlm]

    def seconds(command: list[Any], path: Path) -> float:
        begun = time.perf_counter()
        named = [str(path if part == "FILE" else part) for part in command]
        with open(path, "rb") as text:
            subprocess.run(named, stdin=text, check=True, capture_output=True, cwd=ROOT)
        return time.perf_counter() - begun

    for name, command in programs.items():
        best = [min(seconds(command, path) for _ in range(options.times)) for path in (many, few)]
        print(f"{name}: {best[0] - best[1]:.2f} s for {len(lines):,} lines")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--kenlm", type=Path)
    parser.add_argument("--query", default="query")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = filters(snm.load(options.model), options.text, options.threads, options.times, Path(name))
        report("filter", options.text.name, rows, options.json)
        commands(options, Path(name))


if __name__ == "__main__":
    main()
