"""Thread pools, for kernels that release the GIL."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def run(work: Callable[[Item], object], items: Iterable[Item], threads: int) -> None:
    """Call `work` on every item, with several threads in any order. The first error stops the rest."""
    if threads <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(threads) as pool:
        try:
            futures = [pool.submit(work, item) for item in items]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:  # an interrupt too: do not start further items
            pool.shutdown(cancel_futures=True)
            raise


def ahead(threads: int) -> int:
    """Number of items that `ordered` processes ahead of the one that it yields."""
    return 2 * threads if threads > 1 else 0


def ordered(work: Callable[[Item], Made], items: Iterable[Item], threads: int) -> Iterator[Made]:
    """The results of `work` in the order of the items. Several threads process a few items ahead."""
    if threads <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        results: deque[Future[Made]] = deque()
        try:
            for item in items:
                results.append(pool.submit(work, item))
                if len(results) > ahead(threads):
                    yield results.popleft().result()
            while results:
                yield results.popleft().result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def shares(start: int, stop: int, n: int) -> list[tuple[int, int]]:
    """[start, stop) cut into at most n ranges of nearly equal length; none is empty."""
    return between([start + (stop - start) * i // n for i in range(n + 1)])


def between(edges: list[int]) -> list[tuple[int, int]]:
    """The non-empty ranges between successive edges."""
    return [(a, b) for a, b in pairwise(edges) if b > a]
