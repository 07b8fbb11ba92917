"""What runs the tasks: Ray, other programs that a batch system or a shell has started, or this process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

from snm.cluster.scheduling import in_order
from snm.cluster.tasks import perform
from snm.cluster.work import PHASE, name_of, read_mark
from snm.devices import require_ray
from snm.errors import SettingsError, SnmError
from snm.progress import Notify
from snm.remote import Folder

LOOKS = 0.1, 5.0  # seconds between looks for marks: at first, and at most
RAY_RETRIES = 3  # by Ray itself; then the driver starts the task anew


class Runner(Protocol):
    slots: int
    """Tasks that can run at the same time."""
    threads: int
    """Threads of a task."""

    def run(self, task: str, shards: int, folder: Folder) -> Iterator[int]:
        """Run a task for each of `shards`; each number comes when its task and those before it have ended."""

    def close(self) -> None:
        """Give back what this has."""


class RayRunner:
    """Runs tasks on a Ray cluster. A task takes the CPUs of its threads, and the memory that the user allows."""

    def __init__(self, address: str | None, threads: int, memory: int, notify: Notify) -> None:
        require_ray()
        import ray

        self._ray, self._owned = ray, not ray.is_initialized()
        if self._owned:
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                raise SettingsError(f"cannot connect to Ray at {address or 'this machine'}: {error}") from error
        try:
            self._use(threads, memory, notify)
        except BaseException:
            self.close()
            raise

    def _use(self, threads: int, memory: int, notify: Notify) -> None:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self.threads = max(1, min(threads, int(max(node.get("CPU", 0) for node in nodes))))
        places = [min(int(node.get("CPU", 0) / self.threads), int(node.get("memory", 0) / memory)) for node in nodes]
        self.slots = sum(places)
        if not self.slots:
            most = max(node.get("memory", 0) for node in nodes)
            raise SettingsError(
                f"no machine of the Ray cluster has a CPU and {memory >> 20:,} MB for a task; the largest has "
                f"{int(most) >> 20:,} MB: give less --memory"
            )
        self._perform = self._ray.remote(perform).options(num_cpus=self.threads, memory=memory, max_retries=RAY_RETRIES)
        cpus = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        notify(f"engine ray: {len(nodes)} machines, {self.slots} tasks at a time, each with {cpus}")

    def run(self, task: str, shards: int, folder: Folder) -> Iterator[int]:
        where = folder.where
        return in_order(
            _RayPool(self._ray, self.slots, lambda i: self._perform.remote(task, i, shards, where, where)), shards
        )

    def close(self) -> None:
        if self._owned:
            self._ray.shutdown()


class _RayPool:
    """See `snm.cluster.scheduling.Pool`."""

    def __init__(self, ray: Any, slots: int, start: Callable[[int], Any]) -> None:
        self._ray, self.slots, self.submit = ray, slots, start

    def wait(self, handles: list[Hashable]) -> list[Hashable]:
        done, _ = self._ray.wait(handles, num_returns=1)
        more, _ = self._ray.wait(handles, num_returns=len(handles), timeout=0)
        return list({*done, *more})

    def lost(self, handle: Hashable) -> Exception | None:
        errors = self._ray.exceptions
        try:
            self._ray.get(handle)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, SnmError):
                raise cause from None
            if isinstance(cause, OSError):  # a disk or a network that fails for a while
                return cause
            raise
        except errors.RayError as error:  # the worker, the machine or its object store is gone
            return SettingsError(f"a task was lost again and again: {str(error).splitlines()[0]}")
        return None

    def cancel(self, handles: list[Hashable]) -> None:
        for handle in handles:
            self._ray.cancel(handle, force=True)
        if handles:
            self._ray.wait(handles, num_returns=len(handles), timeout=60)


class LocalRunner:
    """Runs tasks in this process, one after another."""

    slots = 1

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def run(self, task: str, shards: int, folder: Folder) -> Iterator[int]:
        for shard in range(shards):
            perform(task, shard, shards, folder.where, folder.where)
            yield shard

    def close(self) -> None:
        pass


class WaitingRunner:
    """Waits for tasks that other programs run: `python -m snm.cluster`, started by a batch system or a shell."""

    def __init__(self, threads: int, slots: int, notify: Notify) -> None:
        self.threads, self.slots, self._notify = threads, slots, notify
        self._phase = 0

    def run(self, task: str, shards: int, folder: Folder) -> Iterator[int]:
        self._phase += 1
        parent, _, name = folder.where.rpartition("/")
        phase = {"phase": self._phase, "task": task, "shards": shards, "folder": name}
        Folder(parent).write(PHASE, json.dumps(phase).encode())
        self._notify(f"waiting for {shards} tasks: python -m snm.cluster all --work {parent} --shard I --shards N")
        pause = LOOKS[0]
        for shard in range(shards):
            while read_mark(folder, name_of(task, shard, shards)) is None:
                time.sleep(pause)
                pause = min(1.5 * pause, LOOKS[1])
            pause = LOOKS[0]
            yield shard

    def close(self) -> None:
        pass
