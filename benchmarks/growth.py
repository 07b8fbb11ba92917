"""How cost grows with the text: time and memory of training and scoring at 1, 3, 10, 30 million tokens and all.

    python benchmarks/growth.py CORPUS [--presets snm5] [--work DIR] [--json FILE]

The memory is that of the whole process, with --memory 2G. The plot goes to docs/benchmarks.png and
needs matplotlib.
"""

import json
import sys
from pathlib import Path
from typing import Any

from common import ROOT, Bench, timed

SIZES = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 10**12)
STEPS = """
import json, resource, sys, time
from contextlib import contextmanager
from snm.pipeline import Settings, train
from snm.corpus import encode_files
from snm.evaluation import perplexity

spent = {}

@contextmanager
def progress(label, total):
    begun = time.perf_counter()
    yield lambda n: None
    step = label.split(" ")[0]
    spent[step] = spent.get(step, 0) + time.perf_counter() - begun

text, preset, output, scored = sys.argv[1:]
begun = time.perf_counter()
model = train(text, output, Settings(features=preset, memory=2 << 30), overwrite=True, progress=progress)
seconds = time.perf_counter() - begun
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
held_out = encode_files(scored, model.vocabulary)
model.score("a word")  # compiles
begun = time.perf_counter()
perplexity(model, held_out)
scoring = (time.perf_counter() - begun) / held_out.events
print(json.dumps({"tokens": model.manifest["text"]["tokens"], "seconds": seconds, "peak GB": peak / 1e9,
                  "counting s": spent["sizing"] + spent["counting"], "training s": spent["training"],
                  "scoring us a word": scoring * 1e6, "links": model.manifest["links"]}))
"""


def cut(bench: Bench, tokens: int) -> Path:
    """The beginning of the training text, of about so many tokens."""
    path, left = bench.work / f"first{tokens}.txt", tokens
    with open(bench.text("train"), encoding="utf-8") as lines, open(path, "w", encoding="utf-8") as few:
        for line in lines:
            few.write(line)
            left -= len(line.split()) + 1
            if left <= 0:
                break
    return path


def measure(bench: Bench, preset: str, tokens: int) -> dict[str, Any]:
    text = cut(bench, tokens)
    command = [sys.executable, "-c", STEPS, text, preset, bench.work / "growth.model", bench.text("test")]
    found = json.loads(timed(command, cwd=ROOT).output)
    text.unlink()
    return {"preset": preset, **found}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    _, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    tokens = [row["tokens"] / 1e6 for row in rows]
    for name in ("seconds", "counting s", "training s"):
        axes[0].plot(tokens, [row[name] for row in rows], "o-", label=name.removesuffix(" s").replace("seconds", "all"))
    axes[0].set(title="training, seconds")
    axes[0].legend()
    axes[1].plot(tokens, [row["peak GB"] for row in rows], "o-")
    axes[1].set(title="peak memory with --memory 2G, GB", ylim=(0, None))
    axes[2].plot(tokens, [row["scoring us a word"] for row in rows], "o-")
    axes[2].set(title="scoring on one thread, µs a word", ylim=(0, None))
    for axis in axes:
        axis.set_xlabel("million tokens")
        axis.grid(alpha=0.3)
    plt.savefig(path, dpi=130)


def main() -> None:
    bench = Bench(__doc__, "snm5")
    rows = []
    for preset in bench.asked.presets:
        measure(bench, preset, 100_000)  # compiles
        rows += [measure(bench, preset, size) for size in SIZES]
    bench.report("growth", rows)
    plot(rows, ROOT / "docs" / "benchmarks.png")


if __name__ == "__main__":
    main()
