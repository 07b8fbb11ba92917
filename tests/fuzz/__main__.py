"""Run a campaign, print its figures, and end with 1 if anything failed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from numba import config

from tests.fuzz.uses import remove_files, write_files
from tests.fuzz.workers import MORE_MEMORY, SECONDS, Campaign

MEMORY_DISK = Path("/dev/shm")
PART = 4000  # models, after which the figures are written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--models", type=int, default=100_000)
    parser.add_argument("--arpa", type=int, default=20_000, help="ARPA files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first model and of the first file")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help="no neural models but those of tests/golden")
    parser.add_argument("--seeds", type=Path, help="folder of models to change, made if it is not there")
    parser.add_argument("--output", type=Path, help="write the figures to this file too (JSON)")
    parser.add_argument("--keep", type=Path, help="folder for the files of failures")
    parser.add_argument("--only", type=int, help="try one model in this process, and leave it in the folder --keep")
    parser.add_argument("--kind", choices=["model", "arpa"], default="model", help="of --only")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as folder:
        seeds = chosen.seeds or Path(folder) / "seeds"
        if not seeds.exists():
            make_seeds(seeds, chosen.quick)
        campaign = Campaign(seeds, Path(folder) / "work", chosen.seed, chosen.workers)
        if chosen.only is not None:
            try_one(campaign, chosen.kind, chosen.only, chosen.keep)
            return
        campaign.warm_up()
        figures = run(campaign, chosen)
    print(json.dumps(figures, indent=1))
    sys.exit(bool(figures["failures"]))


def make_seeds(folder: Path, quick: bool) -> None:
    """In a process of its own: training starts threads, and is not to be compiled with bounds checks."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    command = [sys.executable, "-m", "tests.fuzz.seeds", str(folder), *(["--quick"] if quick else [])]
    subprocess.run(command, env=plain, check=True)


def run(campaign: Campaign, chosen: argparse.Namespace) -> dict[str, Any]:
    """Models and files in turns; the figures are written after each part."""
    begun, cpu = time.monotonic(), sum(os.times()[:4])
    left, figures = {"model": chosen.models, "arpa": chosen.arpa}, dict[str, Any]()
    while any(left.values()):
        for kind, total in (("model", chosen.models), ("arpa", chosen.arpa)):
            count = min(left[kind], -(-total * PART // max(1, chosen.models)))
            campaign.run(kind, count, chosen.first + total - left[kind])
            left[kind] -= count
        figures = figures_of(campaign, chosen, time.monotonic() - begun, sum(os.times()[:4]) - cpu)
        if chosen.output is not None:
            chosen.output.write_text(json.dumps(figures, indent=1) + "\n")
    if chosen.keep is not None and campaign.figures.failures:
        chosen.keep.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(campaign.folder / "failures"), str(chosen.keep)], check=True)
    return figures


def figures_of(campaign: Campaign, chosen: argparse.Namespace, seconds: float, cpu: float) -> dict[str, Any]:
    """What has come of it so far."""
    found = campaign.figures
    return {
        "seed": chosen.seed, "first": chosen.first, "bounds checks": bool(config.BOUNDSCHECK),
        "seconds": round(seconds), "processor seconds": round(cpu),
        "outcomes": dict(sorted(found.outcomes.items())), "tried": dict(sorted(found.tried.items())),
        "slowest, seconds": found.slowest, "limit, seconds": SECONDS,
        "most memory beyond twice the model": found.largest, "limit, bytes": MORE_MEMORY,
        "failures": found.failures,
    }  # fmt: skip


def try_one(campaign: Campaign, kind: str, number: int, keep: Path | None) -> None:
    """What a model does, with its traceback."""
    from random import Random

    from tests.fuzz.uses import import_arpa, use

    name, mutant, random = campaign.mutant(kind, number)
    box = campaign.box("only")
    write_files(box / "in", mutant.files)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        remove_files(keep)
        write_files(keep, mutant.files)
    print(name, *mutant.done, sep="\n  ", flush=True)
    assert isinstance(random, Random)
    run_it, path = (import_arpa, box / "in" / "m.arpa") if kind == "arpa" else (use, box / "in")
    print(run_it(path, box / "out", random))


if __name__ == "__main__":
    main()
