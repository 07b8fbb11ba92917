"""Training on a Ray cluster of several nodes on this machine, beside the plain CPU engine.

    python benchmarks/cluster.py CORPUS [--presets snm5] [--workers 2] [--rounds 2] [--memory 4G] [--work DIR]
        [--json FILE]

Every node has a network namespace, and its own /tmp/ray and /dev/shm, so that nothing is shared but the work folder.
Needs root and Linux (`ip`, `unshare`, `mount`). The head has no CPUs for tasks; each worker has one, and the plain
engine has as many threads as there are workers. First a small text is trained with one thread by both engines, and must
give the same bytes. Then both train the corpus, taking turns.
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from common import ROOT, Bench, timed

BRIDGE, NETWORK, PORT = "snm-bridge", "10.77.0", 6379
SMALL_LINES = 20_000


def shell(command: str) -> None:
    subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL)


def inside(node: int, command: list[str]) -> list[str]:
    """A command that runs in the network namespace of a node."""
    return ["ip", "netns", "exec", f"snm{node}", *command]


@contextmanager
def networks(nodes: int) -> Iterator[None]:
    """A network namespace for each node, joined by a bridge."""
    shell(f"ip link add {BRIDGE} type bridge && ip link set {BRIDGE} up")
    try:
        for i in range(nodes):
            shell(
                f"ip netns add snm{i} && ip link add snm-v{i} type veth peer name eth0 netns snm{i} && "
                f"ip link set snm-v{i} master {BRIDGE} up && ip -n snm{i} link set lo up && "
                f"ip -n snm{i} addr add {NETWORK}.{i + 1}/24 dev eth0 && ip -n snm{i} link set eth0 up"
            )
        yield
    finally:
        for i in range(nodes):
            subprocess.run(["ip", "netns", "del", f"snm{i}"], check=False, stderr=subprocess.DEVNULL)
        shell(f"ip link del {BRIDGE}")


@contextmanager
def cluster(workers: int) -> Iterator[str]:
    """A head without CPUs, and workers with one each; the address of the head."""
    address = f"{NETWORK}.1:{PORT}"
    nodes = []
    for i in range(workers + 1):
        where = "--head --port=6379 --num-cpus=0" if i == 0 else f"--address={address} --num-cpus=1"
        start = f"{Path(sys.executable).parent}/ray start {where} --node-ip-address={NETWORK}.{i + 1} --block"
        own = "mount -t tmpfs none /dev/shm && mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray &&"
        quiet = "--include-dashboard=false --disable-usage-stats --object-store-memory=200000000 --memory=8000000000"
        command = ["unshare", "-m", "sh", "-c", f"{own} exec {start} {quiet if i == 0 else quiet.partition(' ')[2]}"]
        command = inside(i, command)
        with open(f"/var/tmp/snm-node-{i}.log", "wb") as log:
            nodes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True))
        wait(i, address)
    try:
        yield address
    finally:
        for node in reversed(nodes):
            os.killpg(node.pid, 15)
            node.wait()
        for folder in Path("/var/tmp").glob("snm-node-*"):
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


def wait(node: int, address: str) -> None:
    """Wait until a node belongs to the cluster."""
    code = f"import ray; ray.init({address!r}); exit(sum(n['Alive'] for n in ray.nodes()) != {node + 1})"
    for _ in range(60):
        time.sleep(2)
        asked = subprocess.run(in_head([sys.executable, "-c", code]), cwd=ROOT, capture_output=True, check=False)
        if asked.returncode == 0:
            return
    log = Path(f"/var/tmp/snm-node-{node}.log").read_text()
    raise SystemExit(f"node {node} did not join the cluster: {log}")


def in_head(command: list[str]) -> list[str]:
    """A command beside the head node, with its network and its /tmp/ray."""
    found = subprocess.run(["ip", "netns", "pids", "snm0"], capture_output=True, text=True, check=True)
    return ["nsenter", "-t", found.stdout.split()[0], "-n", "-m", f"--wd={ROOT}", *command]


def train(text: Path, output: Path, preset: str, memory: str, *options: object, head: bool = False) -> float:
    """Seconds of a training, by its own report."""
    command = [sys.executable, "-m", "snm", "train", text, "-o", output, "--preset", preset, "--memory", memory,
               "--json", "--force", *options]  # fmt: skip
    words = [str(word) for word in command]
    run = timed(in_head(words) if head else words, cwd=ROOT)
    return float(json.loads(run.output)["seconds"])


def same_files(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    equal, _, _ = filecmp.cmpfiles(one, other, names, shallow=False)
    return sorted(equal) == names == sorted(path.name for path in other.iterdir())


def main() -> None:
    bench = Bench(__doc__, "snm5", workers=2, rounds=2, memory="4G")
    options, whole = bench.options, bench.text("train").absolute()
    work = bench.work.absolute()
    few = work / "few-lines.txt"
    with open(whole, "rb") as lines:
        few.write_bytes(b"".join(islice(lines, SMALL_LINES)))
    rows = []
    with networks(options.workers + 1), cluster(options.workers) as address:
        on_ray = "--engine", "ray", "--address", address
        for preset in options.presets:
            alone, many = work / "cpu.model", work / "ray.model"
            train(few, alone, preset, "1G", "--engine", "cpu", "--threads", 1)
            train(few, many, preset, "1G", *on_ray, "--threads", 1, head=True)
            if not same_files(alone, many):
                raise SystemExit(f"{alone} and {many} differ")
            for _ in range(options.rounds):
                threads = "--threads", options.workers
                cpu = train(whole, alone, preset, options.memory, "--engine", "cpu", *threads)
                ray = train(whole, many, preset, options.memory, *on_ray, *threads, head=True)
                rows.append({"preset": preset, "cpu s": cpu, "ray s": ray, "ratio": ray / cpu, "asked": "<= 1.15"})
    bench.report("cluster", rows)


if __name__ == "__main__":
    main()
