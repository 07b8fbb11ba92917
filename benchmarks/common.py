"""What every benchmark prints beside its figures, and how it prints them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from snm.reproduce import markdown_table


def surroundings(corpus: str) -> dict[str, str]:
    """Hardware, versions, corpus and commit."""
    packages = " ".join(f"{name} {version(name)}" for name in ("numpy", "numba"))
    return {
        "cpu": f"{_cpu()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "python": f"{platform.python_version()}, {packages}",
        "corpus": corpus,
        "commit": _commit(),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().split("\n"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return found.stdout.strip() or "unknown"


def report(name: str, corpus: str, rows: list[dict[str, Any]], output: Path | None) -> None:
    """Print the table; write it as JSON where asked."""
    facts = surroundings(corpus)
    print("\n".join(f"{key}: {value}" for key, value in facts.items()))
    print(f"\n{markdown_table(rows)}")
    if output is not None:
        output.write_text(json.dumps({"benchmark": name, **facts, "rows": rows}, indent=1) + "\n")
