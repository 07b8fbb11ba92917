"""A Ray cluster of several nodes on this machine, for tests: a program that obeys lines of its standard input.

It prints the address, then `ok` after each command: `add` a node, `kill-node` (its raylet, which has its object store),
`kill-worker` (a process that runs a task), `wait-free` (until no task runs); it ends with its input.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

NODE: dict[str, Any] = {"object_store_memory": 80 << 20, "include_dashboard": False, "dashboard_agent_listen_port": 0}


QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
"""A node that is dead is noticed after two seconds, not twenty."""


def is_below(process: int) -> bool:
    """Whether a process was started by this one, however indirectly."""
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def workers() -> list[int]:
    """Processes of all nodes that run a task of snm now."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            running = folder.name.isdigit() and (folder / "cmdline").read_bytes().startswith(b"ray::perform")
            if running and is_below(int(folder.name)):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def main() -> None:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "memory": 1 << 20, "_system_config": QUICK, **NODE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, memory=2 << 30, **NODE) for _ in range(2)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        match line.strip():
            case "add":
                nodes.append(cluster.add_node(num_cpus=1, memory=2 << 30, **NODE))
            case "kill-node":
                cluster.remove_node(nodes.pop(0), allow_graceful=False)
            case "kill-worker":
                deadline = time.monotonic() + 5
                while not (running := workers()) and time.monotonic() < deadline:
                    time.sleep(0.005)
                os.kill(running[0], signal.SIGKILL)
            case "wait-free":
                deadline = time.monotonic() + 20
                while workers() and time.monotonic() < deadline:
                    time.sleep(0.02)
                assert not workers(), "tasks are still running"
        print("ok", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
