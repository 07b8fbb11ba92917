"""Scoring text, one thread, from a file to its perplexity, beside KenLM's query on its probing model.

    python benchmarks/score.py CORPUS [--presets snm5 snm10-skip] [--kenlm DIR] [--work DIR] [--json FILE]

Both are timed on the valid and test text, minus the time of the same command on ten lines, which is that of starting
and opening. Both run fifteen times, taking turns; the fastest run counts.
"""

import sys
from pathlib import Path

from common import ROOT, Bench, compared, timed

ASKED = {"snm5": ">= 1", "snm10-skip": ">= 0.15"}
TIMES = 15


def main() -> None:
    bench = Bench(__doc__, "snm5 snm10-skip")
    few = bench.work / "ten.txt"
    lines = bench.scored.read_text(encoding="utf-8").split("\n")
    few.write_text("\n".join(lines[:10]) + "\n", encoding="utf-8")
    words = sum(len(line.split()) + 1 for line in lines if line.strip())
    query = [bench.program("query"), "-v", "summary", bench.kenlm("probing", "probing")]

    def kenlm(path: Path) -> float:
        with open(path, "rb") as text:
            return timed(query, stdin=text).seconds

    def snm(preset: str, path: Path) -> float:
        command = [sys.executable, "-m", "snm", "ppl", bench.model(preset), path, "--threads", "1"]
        return timed(command, cwd=ROOT).seconds

    rows = []
    for preset in bench.options.presets:
        runs = [(snm(preset, bench.scored), kenlm(bench.scored), snm(preset, few), kenlm(few)) for _ in range(TIMES)]
        our_time, their_time, our_start, their_start = (min(column) for column in zip(*runs, strict=True))
        ours, theirs = words / (our_time - our_start) / 1e6, words / (their_time - their_start) / 1e6
        rows.append(compared(f"score with {preset}", ours, theirs, ASKED.get(preset, ""), "M words/s", ours / theirs))
    bench.report("score", rows)


if __name__ == "__main__":
    main()
