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


def workers() -> list[int]:
    """Processes of all nodes that run a task of snm now."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "cmdline").read_bytes().startswith(b"ray::perform"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "memory": 1 << 20, **NODE})
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
