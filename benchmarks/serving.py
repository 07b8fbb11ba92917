"""Load on the server: many clients at a time, slow, oversized and malformed requests among theirs.

    python benchmarks/serving.py MODEL [--requests 2000] [--clients 50] [--soak SECONDS]

Starts `snm serve` with an SNM, and compares every answer with that of the same model in this process. Prints latencies,
wrong answers, and the memory of the server as the requests go on; ends with 1 if an answer was wrong. With --soak the
clients go on for that time instead. The machine's cores are shared by the server and the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from common import report

import snm
from snm.reproduction.tables import markdown_table

SENTENCES = 300
OVERSIZED = 2 << 20  # bytes, twice what the server takes
SLOW = 1.5  # seconds that a slow client takes to send a request
SHARES = {"score": 35, "score words": 10, "next": 20, "explain": 8, "perplexity": 10, "completions": 7, "slow": 3,
          "oversized": 3, "not JSON": 2, "not HTTP": 2}  # fmt: skip


@dataclass
class Asked:
    """A request, and what its answer must be."""

    path: str
    body: bytes
    status: int = 200
    is_right: Callable[[Any], bool] = lambda answer: True
    slow: bool = False
    raw: bool = False


@dataclass
class Result:
    """What was seen."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)  # (seconds, bytes)


class Load:
    """Requests of all kinds, with the answers of the model in this process."""

    def __init__(self, path: str) -> None:
        self.model = model = snm.load(path)
        self.texts = [model.generate(seed=i, max_words=40) or "a" for i in range(SENTENCES)]
        spelled = model.spelling is not None
        self.scores = model.score_sentences(self.texts, spelled=spelled)
        self.words = model.score_words(self.texts, spelled=spelled)
        self.next = [model.next_words(text, k=10) for text in self.texts]
        self.ppl = [model.perplexity([text]).ppl for text in self.texts]
        self.explained = {i: [e.probability for e in model.explain(self.texts[i])] for i in range(SENTENCES // 6)}

    def request(self, kind: str, random: Random) -> Asked:
        i = random.randrange(SENTENCES)
        several = random.sample(range(SENTENCES), random.choice((1, 1, 1, 10, 100)))
        if kind == "score":
            expected = [self.scores[j] for j in several]
            asked = {"texts": [self.texts[j] for j in several]}
            return _asked("/score", asked, lambda a: _near([r["logprob10"] for r in a["results"]], expected))
        if kind in ("score words", "slow"):
            logs = [p for _, p in self.words[i]]
            asked = {"texts": [self.texts[i]], "words": True}
            made = _asked("/score", asked, lambda a: _near([w["logprob10"] for w in a["results"][0]["words"]], logs))
            made.slow = kind == "slow"
            return made
        if kind == "next":
            pairs = self.next[i]
            return _asked("/next", {"texts": [self.texts[i]], "k": 10}, lambda a: _same_words(a["results"][0], pairs))
        if kind == "explain":
            i %= len(self.explained)
            p = self.explained[i]
            return _asked("/explain", {"texts": [self.texts[i]]}, lambda a: _near(
                [w["probability"] for w in a["results"][0]], p))  # fmt: skip
        if kind == "perplexity":
            return _asked("/perplexity", {"text": self.texts[i]}, lambda a: _near([a["ppl"]], [self.ppl[i]]))
        if kind == "completions":
            logs = [p * math.log(10) for _, p in self.words[i]][:-1]
            asked = {"prompt": self.texts[i], "max_tokens": 0, "echo": True, "logprobs": 0}
            return _asked("/v1/completions", asked, lambda a: _near(
                a["choices"][0]["logprobs"]["token_logprobs"], logs))  # fmt: skip
        if kind == "oversized":
            return Asked("/score", json.dumps({"texts": ["a" * OVERSIZED]}).encode(), 413)
        if kind == "not JSON":
            return Asked("/score", random.randbytes(100), 400)
        return Asked("", random.randbytes(50) + b"\r\n\r\n", 400, raw=True)


def _asked(path: str, body: dict[str, Any], is_right: Callable[[Any], bool]) -> Asked:
    return Asked(path, json.dumps(body).encode(), 200, is_right)


def _near(found: list[float], expected: list[float]) -> bool:
    """Within single precision: a sentence is scored beside others."""
    return len(found) == len(expected) and all(
        math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5) for a, b in zip(found, expected, strict=True)
    )


def _same_words(found: list[dict[str, Any]], expected: list[tuple[str, float]]) -> bool:
    return [f["word"] for f in found] == [w for w, _ in expected] and _near(
        [f["probability"] for f in found], [p for _, p in expected]
    )


class Client:
    """One connection at a time, kept while the server keeps it."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.host, self.port = parts.hostname, parts.port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, asked: Asked) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.host, self.port, limit=1 << 24)
        reader, writer = self.streams
        try:
            await self._send(writer, asked)
            status, body, keep = await self._read(reader)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            await self.close()
            raise
        if not keep:
            await self.close()
        return status, body

    async def _send(self, writer: asyncio.StreamWriter, asked: Asked) -> None:
        head = (f"POST {asked.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(asked.body)}\r\n\r\n").encode()  # fmt: skip
        data = asked.body if asked.raw else head + asked.body
        pieces = 10 if asked.slow else 1
        size = -(-len(data) // pieces)
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await writer.drain()
            if asked.slow:
                await asyncio.sleep(SLOW / pieces)

    async def _read(self, reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", head)
        body = await (reader.readexactly(int(length[1])) if length else reader.read())
        return int(head.split()[1]), body, "connection: close" not in head

    async def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def run(address: str, load: Load, arguments: argparse.Namespace, process: int) -> Result:
    result, begun = Result(), time.monotonic()
    kinds = iter(_kinds(arguments, begun))
    tasks = [asyncio.create_task(client(address, load, kinds, result, i)) for i in range(arguments.clients)]
    while not all(task.done() for task in tasks):
        result.memory.append((time.monotonic() - begun, memory_of(process)))
        await asyncio.wait(tasks, timeout=max(0.2, arguments.soak / 200))
    await asyncio.gather(*tasks)
    result.memory.append((time.monotonic() - begun, memory_of(process)))
    return result


def _kinds(arguments: argparse.Namespace, begun: float) -> Iterator[str]:
    """The kinds of the requests, until enough have been asked."""
    random, asked = Random(1), 0
    while time.monotonic() - begun < arguments.soak if arguments.soak else asked < arguments.requests:
        yield random.choices(list(SHARES), list(SHARES.values()))[0]
        asked += 1


async def client(address: str, load: Load, kinds: Iterator[str], result: Result, seed: int) -> None:
    random, own = Random(seed), Client(address)
    for kind in kinds:
        asked = load.request(kind, random)
        if asked.raw:
            await own.close()
        begun = time.perf_counter()
        try:
            status, body = await own.ask(asked)
        except (OSError, asyncio.IncompleteReadError) as error:
            result.wrong.append(f"{kind}: {error!r}")
            continue
        result.seconds[kind].append(time.perf_counter() - begun)
        result.statuses[status] += 1
        if status != asked.status or not asked.is_right(json.loads(body) if status == 200 else None):
            result.wrong.append(f"{kind}: status {status}: {body[:200]!r}")
    await own.close()


def memory_of(process: int) -> int:
    """Bytes of a process's memory that are not mapped files."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * sum(int(found) for found in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status))


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


def drift(memory: list[tuple[float, int]]) -> tuple[float, float, float]:
    """The median memory of the second, and of the last, fifth of the time, in MB; and their ratio less one."""
    end = memory[-1][0]
    early = statistics.median(size for at, size in memory if 0.2 * end <= at <= 0.4 * end)
    late = statistics.median(size for at, size in memory if at >= 0.8 * end)
    return early / 1e6, late / 1e6, late / early - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--soak", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    load = Load(arguments.model)
    command = [sys.executable, "-m", "snm", "serve", f"model={arguments.model}", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "http://" in line)
        address = line.split(" at ")[1].split("/ ")[0]
        begun = time.perf_counter()
        try:
            result = asyncio.run(run(address, load, arguments, server.pid))
        finally:
            server.terminate()
    seconds, answers = time.perf_counter() - begun, sum(result.statuses.values())
    early, late, change = drift(result.memory)
    report("serving", Path(arguments.model).name, rows_of(result), arguments.output)
    print(f"\n{answers:,} answers to {arguments.clients} clients in {seconds:.1f} s, {answers / seconds:.0f} a second")
    print(markdown_table([{str(status): n for status, n in sorted(result.statuses.items())}]))
    print(f"memory: {early:.1f} MB early, {late:.1f} MB late ({change:+.2%}); server ended with {server.returncode}")
    print(f"wrong answers: {len(result.wrong)}")
    for wrong in result.wrong[:10]:
        print(wrong)
    sys.exit(bool(result.wrong) or server.returncode != 0)


if __name__ == "__main__":
    main()
