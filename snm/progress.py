"""Progress reports and messages, which long work hands to whoever called it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""`with progress(label, total) as advance: ... advance(n)`; total is 0 where it is not known."""
Notify = Callable[[str], None]
"""Receives one-line messages."""


def ignore(report: object) -> None:
    """An `Advance` or a `Notify` that does nothing."""


@contextmanager
def silent(label: str, total: int) -> Iterator[Advance]:
    """A `Progress` that shows nothing: the default of the library, which never prints."""
    yield ignore
