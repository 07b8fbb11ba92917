"""Work of models, in threads, in pieces; and the answers that are made of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse

from snm.errors import SnmError
from snm.server.guard import error_body
from snm.server.limits import Deadline, Refusal

T = TypeVar("T")
Encode = Callable[[Any], bytes]


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def json_response(value: Any) -> Response:
    return Response(as_json(value), media_type="application/json")


class Workers:
    """Threads that run pieces of the work of all requests in turn, so that a long request does not hold up others."""

    def __init__(self, threads: int, seconds: float) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="snm-serve")
        self.seconds = seconds

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *arguments)

    async def pieces(self, rows: Iterator[list[Any]], encode: Encode = as_json) -> AsyncIterator[list[bytes]]:
        """The rows of an iterator, encoded, a few at a time."""
        deadline = Deadline(self.seconds)

        def piece() -> list[bytes] | None:
            some = next(rows, None)
            return None if some is None else [encode(row) for row in some]

        while (some := await self.run(piece)) is not None:
            deadline.check()
            yield some

    async def answer(self, name: str, rows: Iterator[list[Any]], stream: bool) -> Response:
        """All rows in one object, or each as a line."""
        if stream:
            return StreamingResponse(await self.begun(rows, as_json, b"", b"\n"), media_type="application/x-ndjson")
        results = [row async for some in self.pieces(rows) for row in some]
        body = b'{"model":' + as_json(name) + b',"results":[' + b",".join(results) + b"]}"
        return Response(body, media_type="application/json")

    async def begun(
        self, rows: Iterator[list[Any]], encode: Encode, before: bytes, after: bytes, last: bytes = b""
    ) -> AsyncIterator[bytes]:
        """The parts of a stream. The first one is made before the answer begins, so that its errors have a status."""
        pieces = self.pieces(rows, encode)
        first: list[bytes] = await anext(pieces, [])
        return self._stream(first, pieces, before, after, last)

    async def _stream(
        self, first: list[bytes], pieces: AsyncIterator[list[bytes]], before: bytes, after: bytes, last: bytes
    ) -> AsyncIterator[bytes]:
        def joined(rows: list[bytes]) -> bytes:
            return b"".join(before + row + after for row in rows if row)

        try:
            if first:
                yield joined(first)
            async for some in pieces:
                if some:
                    yield joined(some)
            yield last
        except Refusal as refusal:
            yield before + error_body(refusal.status, refusal.message) + after
        except SnmError as error:
            yield before + error_body(400, str(error)) + after

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
