"""Time to open a model, without imports, and to print the help.

python benchmarks/opening.py CORPUS [--presets snm5] [--work DIR] [--json FILE]
"""

import sys

from common import ROOT, Bench, best_of, compared, timed

OPEN = """
import time, sys, snm, snm.loading, snm.scoring.model
begun = time.perf_counter()
snm.load(sys.argv[1])
print(time.perf_counter() - begun)
"""


def main() -> None:
    bench = Bench(__doc__, "snm5")
    rows = []
    for preset in bench.options.presets:
        command = [sys.executable, "-c", OPEN, bench.model(preset)]
        seconds = min(float(timed(command, cwd=ROOT).output) for _ in range(5))
        rows.append(compared(f"open {preset}, beyond imports", 1000 * seconds, 50, "<= 1", "ms", seconds / 0.05))
    [seconds] = best_of(5, lambda: timed([sys.executable, "-m", "snm", "--help"], cwd=ROOT))
    rows.append(compared("snm --help", seconds, 0.3, "<= 1", "s", seconds / 0.3))
    bench.report("opening", rows)


if __name__ == "__main__":
    main()
