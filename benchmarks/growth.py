"""Growth of cost with the text: time and memory of counting, training and scoring.

    python benchmarks/growth.py CORPUS [--presets snm5 snm10-skip] [--work DIR] [--json FILE]

Measured at 1, 3, 10 and 30 million tokens, and all. Held-out text is given, so each text is counted once. Memory is the
peak of the process's private memory; `mapped GB` includes the files that it maps. `--memory` is a limit that has an
effect from 10 million tokens on. The plot goes to docs/benchmarks.png and needs Matplotlib.
"""

import json
import sys
from pathlib import Path
from typing import Any

from common import ROOT, Bench, timed

SIZES = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 10**12)
LIMITS = {"snm5": 512 << 20, "snm10-skip": 1 << 30}
TRAIN = """
import json, sys, time
from contextlib import contextmanager
from snm.memory import Peak
from snm.pipeline import train
from snm.settings import Settings

spent, peaks = {}, {}

@contextmanager
def progress(label, total):
    begun = time.perf_counter()
    with Peak() as peak:
        yield lambda n: None
    step = label.split(" ")[0].replace("sizing", "counting")
    spent[step] = spent.get(step, 0) + time.perf_counter() - begun
    peaks[step] = max(peaks.get(step, 0), peak.bytes)

text, held_out, preset, memory, output = sys.argv[1:]
begun = time.perf_counter()
with Peak() as peak:
    settings = Settings(features=preset, memory=int(memory))
    model = train(text, output, settings, dev=held_out, force=True, progress=progress)
seconds = time.perf_counter() - begun
print(json.dumps({"tokens": model.manifest["text"]["tokens"], "links": model.manifest["links"], "seconds": seconds,
                  "counting s": spent["counting"], "training s": spent["training"],
                  "GB": peak.bytes / 1e9, "counting GB": peaks["counting"] / 1e9,
                  "training GB": peaks["training"] / 1e9}))
"""
SCORE = """
import json, sys, time
from snm.loading import load
from snm.memory import Peak
from snm.text.encoding import encode_files

model = load(sys.argv[1])
held_out = encode_files(sys.argv[2], model.vocabulary)
model.score("a word")  # compiles
begun = time.perf_counter()
with Peak() as peak:
    model.perplexity(held_out)
print(json.dumps({"scoring us a word": (time.perf_counter() - begun) / held_out.events * 1e6,
                  "scoring GB": peak.bytes / 1e9}))
"""


def beginning(bench: Bench, tokens: int) -> Path:
    """A file with the beginning of the training text, about `tokens` tokens."""
    path, left = bench.work / f"first{tokens}.txt", tokens
    with open(bench.text("train"), encoding="utf-8") as lines, open(path, "w", encoding="utf-8") as few:
        for line in lines:
            few.write(line)
            left -= len(line.split()) + 1
            if left <= 0:
                break
    return path


def measure(bench: Bench, preset: str, tokens: int) -> dict[str, Any]:
    text, model, limit = beginning(bench, tokens), bench.work / "growth.model", LIMITS[preset]
    trained = timed([sys.executable, "-c", TRAIN, text, bench.text("valid"), preset, str(limit), model], cwd=ROOT)
    scored = timed([sys.executable, "-c", SCORE, model, bench.text("test")], cwd=ROOT)
    text.unlink()
    found = {"preset": preset, **json.loads(trained.output), "mapped GB": trained.peak_bytes / 1e9}
    return {**found, "limit GB": limit / 1e9, **json.loads(scored.output)}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    presets = list(dict.fromkeys(row["preset"] for row in rows))
    _, axes = plt.subplots(len(presets), 3, figsize=(12, 3.4 * len(presets)), layout="constrained", squeeze=False)
    for (seconds, memory, scoring), preset in zip(axes, presets, strict=True):
        few = [row for row in rows if row["preset"] == preset]

        def line(axis: Any, figure: str, label: str, few: list[dict[str, Any]] = few, **how: Any) -> None:
            axis.plot([row["tokens"] / 1e6 for row in few], [row[figure] for row in few], label=label, **how)

        for figure, label in (("seconds", "all"), ("counting s", "counting"), ("training s", "training")):
            line(seconds, figure, label, marker="o")
        for figure, label in (("GB", "all of training"), ("counting GB", "counting"), ("training GB", "adjustment"),
                              ("scoring GB", "scoring")):  # fmt: skip
            line(memory, figure, label, marker="o")
        line(memory, "limit GB", "--memory", linestyle="--", color="grey")
        line(scoring, "scoring us a word", "", marker="o")
        seconds.set_title(f"{preset}: training, seconds")
        memory.set_title(f"{preset}: memory at the peak, GB")
        scoring.set_title(f"{preset}: scoring, µs a word")
        for axis in (seconds, memory):
            axis.legend(fontsize="small")
        for axis in (seconds, memory, scoring):
            axis.set(xlabel="million tokens", ylim=(0, None))
            axis.grid(alpha=0.3)
    plt.savefig(path, dpi=130)


def main() -> None:
    bench = Bench(__doc__, "snm5 snm10-skip")
    rows = []
    for preset in bench.options.presets:
        measure(bench, preset, 100_000)  # compiles
        rows += [measure(bench, preset, size) for size in SIZES]
    bench.report("growth", rows)
    plot(rows, ROOT / "docs" / "benchmarks.png")


if __name__ == "__main__":
    main()
