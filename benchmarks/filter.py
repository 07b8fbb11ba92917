"""Filtering a file end to end, beside the rate at which the same model scores the same text that is in memory; and
scoring lines, beside KenLM's query.

    python benchmarks/filter.py MODEL TEXT [--threads 1 2] [--times 5] [--lines 50000] [--kenlm BINARY]
                                [--query PROGRAM] [--json FILE]

Filtering opens no model: it is what a filter of a large file does all the time. It reads, scores, keeps half and
writes, from plain text, gz, zst, JSON lines and, with pyarrow, Parquet, to the same format. It is compared with two
rates of one thread: scoring tokens in memory, and `perplexity` of the file, which reads and encodes too.
All rates are tokens a second of CPU time, of all threads together, so other programs disturb them little. The three
take turns; the fastest run of each counts. `snm score` and KenLM's query (on its own model, --kenlm) are run as
commands on the first lines of the text; their CPU time is that less the time of ten lines.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
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

    def rate(work: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            begun = time.process_time()
            work()
            return events / (time.process_time() - begun) / 1e6

        return run

    scoring = rate(lambda: model.probabilities(tokens))
    whole = rate(lambda: model.perplexity(text))
    limit = snm.filter_text(model, text, None).quantiles["50%"]
    runs: list[tuple[str, int, Path, dict[str, Any]]] = [
        (what, n, path, {"max_ppl": limit}) for what, path in inputs(text, folder).items() for n in threads
    ]
    runs.append(("text, --keep 50% --resume", 1, text, {"keep": 0.5, "resume": True}))
    rows = []
    for what, n, path, how in runs:
        out = folder / f"out{path.suffix}"
        filtering = rate(partial(snm.filter_text, model, path, out, threads=n, **how))
        alone, from_file, found = fastest(times, scoring, whole, filtering)
        row = {"filter": what, "threads": n, "M tokens/s": found, "scoring": alone, "perplexity": from_file}
        rows.append({**row, "of scoring": found / alone, "of perplexity": found / from_file})
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
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        named = [str(path if part == "FILE" else part) for part in command]
        with open(path, "rb") as text:
            subprocess.run(named, stdin=text, check=True, capture_output=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

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
