"""Progress reports and messages, which long work hands to whoever called it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""`with progress(label, total) as advance: ... advance(n)`; total is 0 where it is not known. A progress that counts
stages has a method `expect`, see there."""
Notify = Callable[[str], None]
"""Receives one-line messages."""


def expect(progress: Progress, stages: Sequence[str]) -> None:
    """Tell a progress which stages the work has, by the beginnings of their first labels; the first one is over."""
    tell = getattr(progress, "expect", None)
    if tell is not None:
        tell(stages)


def ignore(report: object) -> None:
    """An `Advance` or a `Notify` that does nothing."""


@contextmanager
def silent(label: str, total: int) -> Iterator[Advance]:
    """A `Progress` that shows nothing: the default of the library, which never prints."""
    yield ignore
