"""The scheduler of a cluster, simulated: 10,000 partitions on many machines, some of which are lost.

    python benchmarks/scheduling.py [--tasks 10000] [--slots 100 1000 4000] [--lost 0.01] [--json FILE]

A task takes a minute on average (log-normal, standard deviation of the logarithm 0.3) of a clock that is simulated. The
scheduler is the one of `snm train --engine ray`. `driver` is the processor time that it takes itself.
"""

import argparse
import heapq
import time
from collections.abc import Hashable
from pathlib import Path

import numpy as np
from common import report

from snm.cluster.scheduling import in_order

SECONDS, SPREAD = 60.0, 0.3  # of a task


class Machines:
    """A pool (see `snm.cluster.scheduling.Pool`) with a simulated clock. A lost task has run half of its time."""

    def __init__(self, slots: int, lost: float) -> None:
        self.slots, self._lost, self._random = slots, lost, np.random.default_rng(1)
        self.now = self.worked = 0.0
        self.started = self.most = 0
        self._waiting: list[int] = []
        self._running: list[tuple[float, int, bool]] = []  # the end, the handle, whether it is lost
        self._ended: dict[Hashable, bool] = {}

    def submit(self, shard: int) -> Hashable:
        self.started += 1
        self._waiting.append(self.started)
        self._fill()
        self.most = max(self.most, len(self._waiting) + len(self._running))
        return self.started

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            is_lost = bool(self._random.random() < self._lost)
            seconds = SECONDS * self._random.lognormal(-(SPREAD**2) / 2, SPREAD) * (0.5 if is_lost else 1)
            self.worked += seconds
            heapq.heappush(self._running, (self.now + seconds, self._waiting.pop(0), is_lost))

    def wait(self, handles: list[Hashable]) -> list[Hashable]:
        self.now, handle, is_lost = heapq.heappop(self._running)
        self._ended[handle] = is_lost
        self._fill()
        return [handle]

    def lost(self, handle: Hashable) -> Exception | None:
        return OSError("a machine is lost") if self._ended.pop(handle) else None

    def cancel(self, handles: list[Hashable]) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--slots", nargs="*", type=int, default=[100, 1000, 4000])
    parser.add_argument("--lost", type=float, default=0.01, help="the share of tasks that are lost")
    parser.add_argument("--json", type=Path, help="write the table there too")
    options = parser.parse_args()
    rows = []
    for slots in options.slots:
        machines, begun = Machines(slots, options.lost), time.process_time()
        assert list(in_order(machines, options.tasks)) == list(range(options.tasks))
        driver = time.process_time() - begun
        rows.append({
            "slots": slots, "tasks": options.tasks, "tasks run": machines.started, "most at once": machines.most,
            "hours": machines.now / 3600, "slots busy": machines.worked / machines.now / slots,
            "driver, ms a task": 1e3 * driver / options.tasks,
        })  # fmt: skip
    report("scheduling", "simulated", rows, options.json)


if __name__ == "__main__":
    main()
