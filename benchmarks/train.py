"""Training from text to a finished model, beside lmplz, which stops at an ARPA file.

python benchmarks/train.py CORPUS [--presets snm5 snm10-skip] [--kenlm DIR] [--work DIR] [--json FILE]
"""

from common import Bench, compared

ASKED = {"snm5": ("<= 0.6", "<= 1"), "snm10-skip": ("<= 8", "8 GB")}
OPTIONS = {"snm10-skip": ["--memory", "8G"]}


def main() -> None:
    bench = Bench(__doc__, "snm5 snm10-skip")
    reference = bench.lmplz()
    rows = []
    for preset in bench.options.presets:
        run = bench.train(preset, *OPTIONS.get(preset, []))
        time_asked, memory_asked = ASKED.get(preset, ("", ""))
        ratio = run.seconds / reference.seconds
        rows.append(compared(f"train {preset}", run.seconds, reference.seconds, time_asked, "s", ratio))
        peak, other = run.peak_bytes / 1e9, reference.peak_bytes / 1e9
        rows.append(compared(f"peak memory, {preset}", peak, other, memory_asked, "GB", peak / other))
    bench.report("train", rows)


if __name__ == "__main__":
    main()
