"""Progress on standard error: bars on a terminal, JSON lines for programs, nothing in pipes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click

from snm.progress import Advance, ignore

INTERVAL = 1.0  # seconds between two JSON lines
FULL, MEDIUM = 60, 30  # columns that a whole bar needs, and one without figures


class Bars:
    """A `Progress`: a bar for every stage, with its number, rate and time left.

    `as_json`: lines of JSON instead, whatever standard error is: the stage, its number and how many there are, how much
    is done, of what total, how much a second, and the seconds left. `quiet`: nothing.
    """

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self._stages: Sequence[str] = ()
        self._number = 0  # of the current stage, from 1

    def expect(self, stages: Sequence[str]) -> None:
        """See `snm.progress.expect`."""
        self._stages, self._number = stages, 1

    def __call__(self, label: str, total: int) -> Any:
        for i in range(max(0, self._number - 1), len(self._stages)):
            if label.startswith(self._stages[i]):
                self._number = i + 1
                break
        if self.as_json and not self.quiet:
            return self._lines(label, total)
        columns = 0 if self.quiet else terminal_columns()
        return _bar(f"{self._number}/{len(self._stages)} {label}" if self._number else label, total, columns)

    @contextmanager
    def _lines(self, label: str, total: int) -> Iterator[Advance]:
        begun, done, shown, lock = time.monotonic(), 0, 0.0, threading.Lock()
        stage = {"stage": label, "number": self._number or None, "of": len(self._stages) or None}

        def show() -> None:
            nonlocal shown
            shown = time.monotonic()
            rate = done / (shown - begun) if shown > begun else 0.0
            left = (total - done) / rate if total and rate else None
            print_line({**stage, "done": done, "total": total or None, "per_second": rate, "seconds_left": left})

        def advance(n: int) -> None:
            nonlocal done
            with lock:
                done += n
                if time.monotonic() - shown > INTERVAL:
                    show()

        show()
        yield advance
        done = max(done, total)  # what ended early is done too
        show()


@contextmanager
def _bar(label: str, total: int, columns: int) -> Iterator[Advance]:
    """A bar of at most `columns`; with a total of 0, a counter of bytes."""
    if columns < len("100%"):
        yield ignore
        return
    from tqdm import tqdm

    class Meter(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread of its own

    lock = threading.Lock()
    with Meter(
        total=total or None, desc=f"{label:<16}", unit="" if total else "B", unit_scale=True, file=sys.stderr,
        ncols=columns, bar_format=_format(total, columns),
    ) as meter:  # fmt: skip

        def advance(n: int) -> None:
            with lock:
                meter.update(n)

        yield advance
        advance(max(0, total - meter.n))  # what ended early is done too


def _format(total: int, columns: int) -> str | None:
    """What a bar shows: a narrow terminal has no rate and time left, then no label."""
    if columns >= FULL:
        return None
    if columns >= MEDIUM:
        return "{desc} {percentage:3.0f}%|{bar}|" if total else "{desc} {n_fmt}B"
    return "{percentage:3.0f}%" if total else "{n_fmt}B"


def terminal_columns() -> int:
    """Columns of the terminal that standard error is, without the last, after which some wrap; 0 for no terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return 0
    try:
        return (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
    except OSError:
        return 79


def print_line(entries: dict[str, Any]) -> None:
    """A line of JSON on standard error."""
    with suppress(OSError):  # nobody reads it
        click.echo(json.dumps(entries), err=True)
