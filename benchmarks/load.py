"""Requests of all kinds to a server, each with the answer that the same model gives in this process; and their clients.

Traffic goes to one address, that of the server that `serving.py` starts on this machine.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

import snm
from snm.model import LanguageModel

SENTENCES = 200
WORDS = 40  # of a sentence
GENERATED = 12  # words that are sampled
OVERSIZED = 2 << 20  # bytes, twice what the server takes
SLOW = 1.5  # seconds that a slow client takes to send a request
SHARES = {
    "score": 30, "score words": 8, "score, streamed": 4, "next": 15, "explain": 7, "perplexity": 9, "generate": 4,
    "completions": 6, "completions, streamed": 3, "tokenize": 2, "GET": 3, "slow": 2, "broken off": 2, "oversized": 2,
    "refused": 2, "not JSON": 1, "not HTTP": 1,
}  # fmt: skip
"""How frequent the kinds of requests are."""
PATHS = [
    "/",
    "/page.js",
    "/page.css",
    "/models",
    "/v1/models",
    "/health",
    "/metrics",
    "/openapi.json",
    "/tokenizer_info",
]
REFUSED: list[tuple[str, dict[str, Any], int]] = [
    ("/score", {"texts": ["a"], "model": "none"}, 404),
    ("/score", {"texts": []}, 400),
    ("/score", {"texts": "a"}, 400),
    ("/score", {"text": "a"}, 400),
    ("/next", {"texts": ["a"], "k": 0}, 400),
    ("/generate", {"n": 10**9}, 400),
    ("/perplexity", {"text": None}, 400),
    ("/v1/completions", {"prompt": "a", "top_p": 0.5}, 400),
    ("/v1/completions", {"prompt": [10**8]}, 404),
    ("/detokenize", {"tokens": [10**8]}, 404),
    ("/none", {}, 404),
    ("/health", {}, 405),
]


@dataclass
class Asked:
    """A request, and what its answer must be."""

    path: str
    body: bytes = b""
    status: int = 200
    is_right: Callable[[bytes], bool] = lambda answer: True
    method: str = "POST"
    slow: bool = False
    raw: bool = False  # `body` is all that is sent
    broken_off: str | None = None  # when the client goes: before it has sent all, "unread", or "within" the answer


class Library:
    """A model, some sentences that it makes, and what it says of them."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.model = name, snm.load(path)
        model, spelled = self.model, self.model.spelling is not None
        self.texts = [model.generate(seed=i, max_words=WORDS) or "a" for i in range(SENTENCES)]
        self.scores = model.score_sentences(self.texts, spelled=spelled)
        self.words = [[p for _, p in scored] for scored in model.score_words(self.texts, spelled=spelled)]
        self.next = [model.next_words(text, k=10) for text in self.texts]
        self.ppl = [model.perplexity([text]).ppl for text in self.texts]
        self.sampled = [model.generate(seed=(i, 0), max_words=GENERATED) for i in range(SENTENCES)]
        self.explains = type(model).explain is not LanguageModel.explain
        explained = self.texts[: SENTENCES // 5] if self.explains else []
        self.explained = [[word.probability for word in model.explain(text)] for text in explained]

    def answers(self, kind: str) -> bool:
        if self.model.vocabulary.tokenizer is not None and kind in ("completions", "completions, streamed", "tokenize"):
            return False
        return self.explains or kind != "explain"

    def request(self, kind: str, random: Random) -> Asked:
        i = random.randrange(SENTENCES)
        if kind in ("score", "score, streamed"):
            return self._score(kind != "score", random)
        if kind in ("score words", "slow"):
            return self._score_words(i, kind == "slow")
        if kind in ("completions", "completions, streamed"):
            return self._completed(i) if kind == "completions" else self._streamed(i)
        if kind == "explain":
            p = self.explained[i % len(self.explained)]
            asked = {"texts": [self.texts[i % len(self.explained)]]}
            return self._asked("/explain", asked, lambda a: near([w["probability"] for w in a["results"][0]], p))
        simple: dict[str, tuple[dict[str, Any], Callable[[Any], bool]]] = {
            "next": ({"texts": [self.texts[i]], "k": 10}, lambda a: same_words(a["results"][0], self.next[i])),
            "perplexity": ({"text": self.texts[i]}, lambda a: near([a["ppl"]], [self.ppl[i]])),
            "generate": ({"seed": i, "max_words": GENERATED}, lambda a: a["results"] == [self.sampled[i]]),
            "tokenize": ({"prompt": self.texts[i]}, lambda a: a["count"] == len(self.texts[i].split())),
        }
        asked, is_right = simple[kind]
        return self._asked(f"/{kind}", asked, is_right)

    def _asked(self, path: str, body: dict[str, Any], is_right: Callable[[Any], bool]) -> Asked:
        return Asked(path, as_json({"model": self.name, **body}), is_right=lambda data: is_right(json.loads(data)))

    def _score(self, stream: bool, random: Random) -> Asked:
        several = random.sample(range(SENTENCES), random.choice((1, 1, 1, 10, 100)))
        expected = [self.scores[j] for j in several]
        asked = {"texts": [self.texts[j] for j in several]}
        if not stream:
            return self._asked("/score", asked, lambda a: near([r["logprob10"] for r in a["results"]], expected))
        body = as_json({"model": self.name, **asked, "stream": True})
        return Asked("/score", body, is_right=lambda data: near(
            [json.loads(line)["logprob10"] for line in data.splitlines()], expected))  # fmt: skip

    def _score_words(self, i: int, slow: bool) -> Asked:
        asked = self._asked("/score", {"texts": [self.texts[i]], "words": True}, lambda a: near(
            [word["logprob10"] for word in a["results"][0]["words"]], self.words[i]))  # fmt: skip
        asked.slow = slow
        return asked

    def _completed(self, i: int) -> Asked:
        """The log probabilities of a text, as evaluation harnesses ask for them."""
        logs = [p * math.log(10) for p in self.words[i]][:-1]
        asked = {"prompt": self.texts[i], "max_tokens": 0, "echo": True, "logprobs": 0}
        return self._asked("/v1/completions", asked, lambda a: near(
            a["choices"][0]["logprobs"]["token_logprobs"], logs))  # fmt: skip

    def _streamed(self, i: int) -> Asked:
        body = {"model": self.name, "prompt": "", "max_tokens": GENERATED, "seed": i, "stream": True}

        def is_right(data: bytes) -> bool:
            events = [line.removeprefix(b"data: ") for line in data.splitlines() if line]
            said = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
            return events[-1] == b"[DONE]" and "".join(said) == self.sampled[i]

        return Asked("/v1/completions", as_json(body), is_right=is_right)


class Load:
    """Requests to the models of a server, a share of them hostile ones."""

    def __init__(self, models: dict[str, str]) -> None:
        self.libraries = [Library(name, path) for name, path in models.items()]

    def request(self, kind: str, random: Random) -> Asked:
        if kind == "GET":
            return Asked(random.choice(PATHS), method="GET")
        if kind == "broken off":
            return self._broken_off(random)
        if kind == "refused":
            path, body, status = random.choice(REFUSED)
            return Asked(path, as_json(body), status)
        if kind == "oversized":
            return Asked("/score", as_json({"texts": ["a" * OVERSIZED]}), 413)
        if kind == "not JSON":
            return Asked("/score", random.randbytes(100), 400)
        if kind == "not HTTP":
            return Asked("", random.randbytes(50) + b"\r\n\r\n", 400, raw=True)
        return random.choice([one for one in self.libraries if one.answers(kind)]).request(kind, random)

    def _broken_off(self, random: Random) -> Asked:
        """A client that goes before it has sent its request, before an answer, or in the middle of a stream."""
        body = {"model": random.choice(self.libraries).name, "n": 20, "max_words": GENERATED, "stream": True}
        return Asked("/generate", as_json(body), broken_off=random.choice(("early", "unread", "within")))


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def near(found: list[float], expected: list[float]) -> bool:
    """Within single precision: a sentence is scored beside others."""
    return len(found) == len(expected) and all(
        math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5) for a, b in zip(found, expected, strict=True)
    )


def same_words(found: list[dict[str, Any]], expected: list[tuple[str, float]]) -> bool:
    return [f["word"] for f in found] == [w for w, _ in expected] and near(
        [f["probability"] for f in found], [p for _, p in expected]
    )


class Client:
    """One connection at a time, kept while the server keeps it."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.host, self.port = parts.hostname, parts.port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, asked: Asked) -> tuple[int, bytes]:
        """The status and the body of the answer; status 0 if it was not waited for."""
        if asked.raw or asked.broken_off is not None:
            self.close()
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.host, self.port, limit=1 << 24)
        reader, writer = self.streams
        try:
            await self._send(writer, asked)
            if asked.broken_off is not None:
                await (reader.readline() if asked.broken_off == "within" else asyncio.sleep(0.01))
                self.close()
                return 0, b""
            status, body, keep = await self._read(reader)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            self.close()
            raise
        if not keep:
            self.close()
        return status, body

    async def _send(self, writer: asyncio.StreamWriter, asked: Asked) -> None:
        head = (f"{asked.method} {asked.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(asked.body)}\r\n\r\n").encode()  # fmt: skip
        data = asked.body if asked.raw else head + asked.body
        if asked.broken_off == "early":
            data = data[: -len(asked.body) // 2]
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
        if "transfer-encoding: chunked" in head:
            body = await _chunks(reader)
        else:
            body = await (reader.readexactly(int(length[1])) if length else reader.read())
        return int(head.split()[1]), body, "connection: close" not in head

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """The body of an answer whose length is not known when it begins."""
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body
