"""Run a campaign, print its figures, and end with 1 if anything was lost."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.faults.campaign import KINDS, Campaign
from tests.faults.cases import CASES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="experiments of each kind for each command")
    parser.add_argument("--sentences", type=int, default=1500, help="of the training text")
    parser.add_argument("--cases", help="names, separated by commas")
    parser.add_argument("--kinds", help="names, separated by commas")
    parser.add_argument("--folder", type=Path, help="for the experiments  [default: the system's temporary folder]")
    parser.add_argument("--output", type=Path, help="write the figures to this file too (JSON)")
    chosen = parser.parse_args()
    cases = [case for case in CASES if chosen.cases is None or case.name in chosen.cases.split(",")]
    kinds = [kind for kind in KINDS if chosen.kinds is None or kind in chosen.kinds.split(",")]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        campaign = Campaign(Path(folder), chosen.seed, chosen.sentences)
        for case in cases:
            campaign.run(case, kinds, chosen.count)
            print(f"{case.name}: {len(campaign.lost)} losses in {sum(campaign.counts.values()):,} faults", flush=True)
            figures = {"seed": chosen.seed, "seconds": round(time.monotonic() - begun), **figures_of(campaign)}
            if chosen.output is not None:
                chosen.output.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    sys.exit(bool(campaign.lost))


def figures_of(campaign: Campaign) -> dict[str, Any]:
    """How many faults of each kind there were, by command and by how the process ended; and what was lost."""
    faults: dict[str, Any] = {}
    for (case, kind), n in campaign.counts.items():
        faults.setdefault(kind, {})[case] = n
    ends = {f"{kind}: {how}": n for (kind, how), n in sorted(campaign.ends.items())}
    totals = {kind: sum(cases.values()) for kind, cases in faults.items()}
    return {"totals": totals, "faults": faults, "ends": ends, "lost": campaign.lost}


if __name__ == "__main__":
    main()
