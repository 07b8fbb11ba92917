"""Load on the server: many clients at a time, with slow, oversized and malformed requests, and some that break off.

    python benchmarks/serving.py [[NAME=]MODEL...] [--requests 2000] [--clients 50] [--soak MINUTES]

Starts `snm serve`, and compares every answer with that of the same model in this process. Without models, it trains
some on the texts of `snm demo`, mixes them, and adds golden models of the other kinds. Prints latencies, wrong answers,
and the memory, open files and threads of the server. With --soak the clients go on for that time instead. Ends with 1
if an answer was wrong, if files or threads stay, or if memory grows by more than 1 % after the first fifth of a soak.
The machine's cores are shared by the server and the clients.

The first fifth is left out because memory grows then for good reasons: pages of the models are read in, caches fill
(sorted words of a vocabulary for prefixes, compiled functions), and the allocators keep what the largest requests took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from common import ROOT, report
from load import SHARES, Client, Load

import snm
from snm.cli.serve import name_models
from snm.demo import write_corpus
from snm.reproduction.tables import markdown_table

GOLDEN = ROOT / "tests" / "golden" / "format3"
KINDS = ("lstm", "hsme", "sources", "snm-cache")  # of golden models
MOST_GROWTH = 0.01  # of memory, in a soak


@dataclass
class Sample:
    """What the server holds at a time."""

    seconds: float  # since the begin
    own: int  # bytes of memory that are no mapped files
    resident: int  # bytes of memory
    files: int
    threads: int


@dataclass
class Result:
    """What was seen."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)


def sample(process: int, begun: float) -> Sample:
    status = Path(f"/proc/{process}/status").read_text()
    found = {name: int(value) for name, value in re.findall(r"(\w+):\s+(\d+)", status)}
    own = 1024 * (found["RssAnon"] + found["RssShmem"])
    files = len(os.listdir(f"/proc/{process}/fd"))
    return Sample(round(time.monotonic() - begun, 1), own, 1024 * found["VmRSS"], files, found["Threads"])


async def run(address: str, load: Load, arguments: argparse.Namespace, process: int) -> Result:
    result, begun = Result(), time.monotonic()
    kinds = iter(_kinds(arguments, begun))
    result.samples.append(sample(process, begun))
    tasks = [asyncio.create_task(client(address, load, kinds, result, i)) for i in range(arguments.clients)]
    while not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=max(0.2, arguments.soak * 60 / 300))
        result.samples.append(sample(process, begun))
    await asyncio.gather(*tasks)
    await asyncio.sleep(2)  # until the server has seen that the clients are gone
    result.samples.append(sample(process, begun))
    return result


def _kinds(arguments: argparse.Namespace, begun: float) -> Iterator[str]:
    """The kinds of the requests, until enough have been asked."""
    random, asked = Random(1), 0
    while time.monotonic() - begun < arguments.soak * 60 if arguments.soak else asked < arguments.requests:
        yield random.choices(list(SHARES), list(SHARES.values()))[0]
        asked += 1


async def client(address: str, load: Load, kinds: Iterator[str], result: Result, seed: int) -> None:
    random, own = Random(seed), Client(address)
    for kind in kinds:
        asked, begun = load.request(kind, random), time.perf_counter()
        try:
            status, body = await own.ask(asked)
        except (OSError, asyncio.IncompleteReadError) as error:
            result.wrong.append(f"{kind}: {error!r}")
            continue
        result.seconds[kind].append(time.perf_counter() - begun)
        result.statuses[status] += 1
        if status and (status != asked.status or (status == 200 and not asked.is_right(body))):
            result.wrong.append(f"{kind}: status {status}: {body[:200]!r}")
    own.close()


def rows_of(result: Result) -> list[dict[str, Any]]:
    rows = []
    for kind in SHARES:
        seconds = sorted(result.seconds[kind])
        if seconds:
            at = {
                f"p{p}, ms": round(1000 * seconds[min(len(seconds) - 1, len(seconds) * p // 100)], 1)
                for p in (50, 90, 99)
            }
            rows.append({"request": kind, "answers": len(seconds), **at, "longest, ms": round(1000 * seconds[-1], 1)})
    return rows


def course(samples: list[Sample]) -> list[dict[str, Any]]:
    """Medians of tenths of the time."""
    end, rows = samples[-2].seconds + 1e-9, []
    for tenth in range(10):
        own = [s for s in samples[:-1] if tenth <= 10 * s.seconds / end < tenth + 1]
        if own:
            rows.append({
                "until, s": round(end * (tenth + 1) / 10, 1), "own memory, MB": f"{_middle(own, 'own') / 1e6:.2f}",
                "resident, MB": f"{_middle(own, 'resident') / 1e6:.2f}", "files": round(_middle(own, "files")),
                "threads": round(_middle(own, "threads")),
            })  # fmt: skip
    return rows


def _middle(samples: list[Sample], name: str) -> float:
    return statistics.median(getattr(one, name) for one in samples)


def growth(samples: list[Sample], name: str) -> float:
    """The median of the last fifth of the time by that of the second one, less one."""
    end = samples[-2].seconds
    early = [s for s in samples if 0.2 * end <= s.seconds <= 0.4 * end]
    late = [s for s in samples if 0.8 * end <= s.seconds <= end]
    return _middle(late, name) / _middle(early, name) - 1


def make_models(folder: Path) -> dict[str, str]:
    """Models of every kind: some trained on the texts of `snm demo`, and golden ones."""
    text, test = write_corpus(folder)
    settings = {"small": {}, "kn": {"model": "kn"}}
    for name, how in settings.items():
        snm.train(text, folder / name, snm.Settings(folds=0, **how)).close()  # type: ignore[arg-type]
    snm.mix([folder / name for name in settings], test, folder / "mixture").close()
    own = {name: str(folder / name) for name in (*settings, "mixture")}
    return own | {name: str(GOLDEN / name) for name in KINDS}


def serve(models: dict[str, str], load: Load, arguments: argparse.Namespace) -> tuple[Result, int]:
    """What was seen, and how the server ended."""
    named = [f"{name}={path}" for name, path in models.items()]
    command = [sys.executable, "-m", "snm", "serve", *named, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "http://" in line)
        address = line.split(" at ")[1].split("/ ")[0]
        try:
            result = asyncio.run(run(address, load, arguments, server.pid))
        finally:
            server.terminate()
    return result, server.returncode


def faults_of(result: Result, ended: int, soak: bool) -> list[str]:
    """What must not be."""
    first, last, growing = result.samples[0], result.samples[-1], growth(result.samples, "own")
    found = [f"{len(result.wrong)} wrong answers: {', '.join(result.wrong[:5])}"] if result.wrong else []
    found += [f"the server ended with {ended}"] if ended else []
    found += [f"{last.files - first.files} files stay open"] if last.files > first.files else []
    if soak:
        threads = growth(result.samples, "threads")
        found += [f"threads grow by {threads:.2%}"] if threads > 0 else []
        found += [f"memory grows by {growing:.2%}"] if growing > MOST_GROWTH else []
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="[NAME=]MODEL")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--soak", type=float, default=0, metavar="MINUTES")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = name_models(tuple(arguments.models)) or make_models(Path(folder))
        load = Load(models)
        result, ended = serve(models, load, arguments)
    report("serving", ", ".join(models), rows_of(result), arguments.output)
    seconds, answers = result.samples[-2].seconds, sum(result.statuses.values())
    print(f"\n{answers:,} requests of {arguments.clients} clients in {seconds:.1f} s, {answers / seconds:.0f} a second")
    print(markdown_table([{str(status or "none"): n for status, n in sorted(result.statuses.items())}]))
    print(markdown_table(course(result.samples)))
    grown = {name: f"{growth(result.samples, name):+.2%}" for name in ("own", "resident")}
    print(f"growth from the second to the last fifth: own memory {grown['own']}, resident {grown['resident']}")
    print(f"files at the begin and in the end: {result.samples[0].files}, {result.samples[-1].files}")
    if arguments.output is not None:
        kept = {"statuses": result.statuses, "samples": [asdict(s) for s in result.samples], "growth": grown}
        arguments.output.write_text(json.dumps(json.loads(arguments.output.read_text()) | kept, indent=1) + "\n")
    faults = faults_of(result, ended, bool(arguments.soak))
    print("\n".join(faults) or "no wrong answer; nothing leaks")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
