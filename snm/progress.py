"""How long work tells how far it is, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int], None]
Progress = Callable[[str, int], AbstractContextManager[Advance]]
"""`with progress(label, total) as advance: … advance(n)`; total 0 where it is not known."""


def ignore(n: int) -> None:
    """An `Advance` that nobody listens to."""


@contextmanager
def silent(label: str, total: int) -> Iterator[Advance]:
    """No progress shown: the default of the library, which never prints."""
    yield ignore
