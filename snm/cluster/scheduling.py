"""Scheduling: tasks are started a few at a time, and those that a broken machine has lost are started again."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator
from typing import Protocol

MAX_TRIES = 10  # of a task that machines lose
TASKS_PER_SLOT = 2  # started at a time: one runs, one waits for its place


class Pool(Protocol):
    """Where tasks run."""

    slots: int
    """Tasks that can run at the same time."""

    def submit(self, shard: int) -> Hashable:
        """Start a task; return a handle of it."""

    def wait(self, handles: list[Hashable]) -> list[Hashable]:
        """Wait until a task has ended; return the handles of all that have."""

    def lost(self, handle: Hashable) -> Exception | None:
        """Why a task that has ended must be started again, if so. An error of the task itself is raised."""

    def cancel(self, handles: list[Hashable]) -> None:
        """Stop tasks, and wait until they have stopped."""


def in_order(pool: Pool, shards: int) -> Iterator[int]:
    """Run a task for each of `shards`; each number comes when its task has ended and all before it have.

    At most TASKS_PER_SLOT tasks for each slot are started and not ended, whatever the number of shards.
    """
    waiting, running, ended = deque(range(shards)), dict[Hashable, int](), set[int]()
    tries, following = Counter[int](), 0
    try:
        while following < shards:
            while waiting and len(running) < TASKS_PER_SLOT * pool.slots:
                shard = waiting.popleft()
                running[pool.submit(shard)] = shard
            for handle in pool.wait(list(running)):
                shard = running.pop(handle)
                why = pool.lost(handle)
                if why is None:
                    ended.add(shard)
                    continue
                tries[shard] += 1
                if tries[shard] == MAX_TRIES:
                    raise why
                waiting.appendleft(shard)
            while following in ended:
                ended.remove(following)
                yield following
                following += 1
    finally:
        pool.cancel(list(running))
