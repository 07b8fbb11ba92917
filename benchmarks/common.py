"""What every benchmark prints beside its figures, and how it prints them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any


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


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table, the first row's keys as its head."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([_cell(row[name]) for name in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 0.01 else f"{value:,.3f}" if abs(value) < 10 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def report(name: str, corpus: str, rows: list[dict[str, Any]], output: Path | None) -> None:
    """Print the table; write it as JSON where asked."""
    facts = surroundings(corpus)
    print("\n".join(f"{key}: {value}" for key, value in facts.items()))
    print(f"\n{table(rows)}")
    if output is not None:
        output.write_text(json.dumps({"benchmark": name, **facts, "rows": rows}, indent=1) + "\n")
