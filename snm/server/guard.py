"""What stands before every request: limits, the token, security headers, figures.

A request is read as a whole before it takes one of the places to be answered, so slow clients take no place.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from snm.server.limits import Limits, Refusal
from snm.server.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

PUBLIC = ("/", "/page.js", "/page.css", "/health")
"""Paths that need no token."""
DISCARDED = 16
"""A request of up to so many times the most bytes is read and dropped: many clients read no answer before they have
sent everything."""
HEADERS = [
    (b"content-security-policy",
     b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
     b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]  # fmt: skip
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 500: "server_error"}


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """An error as OpenAI's servers write it."""
    error = {"message": message, "type": TYPES.get(status, "invalid_request_error"), "param": param, "code": None}
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")


class Guard:
    """An ASGI application around another one."""

    def __init__(
        self, app: App, limits: Limits, metrics: Metrics, token: str | None, hosts: Iterable[str] | None,
        paths: Iterable[str],
    ) -> None:  # fmt: skip
        self.app, self.limits, self.metrics, self.token = app, limits, metrics, token
        self.hosts = None if hosts is None else frozenset(hosts)
        self.paths = frozenset(paths)
        self.answering = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, out = time.perf_counter(), _Out(send)
        try:
            body = await self._admitted(scope, receive)
            await self._answer(scope, _replayed(body, receive), out)
        except Refusal as refusal:
            await out.refuse(refusal)
        except _Gone:
            out.status = 499
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(path, out.status or 500).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - begun)

    async def _admitted(self, scope: MutableMapping[str, Any], receive: Receive) -> bytes:
        """The body of a request that may be answered."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        self._check_host(headers.get(b"host", ""))
        if self.token is not None and scope["path"] not in PUBLIC:
            self._check_token(headers.get(b"authorization", ""))
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length[:20]) > DISCARDED * self.limits.max_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self._body(receive)
        except TimeoutError:
            raise Refusal(
                408, f"the request did not arrive within {self.limits.seconds:g} seconds", [("connection", "close")]
            ) from None

    async def _body(self, receive: Receive) -> bytes:
        parts, size, more = list[bytes](), 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            size += len(message.get("body", b""))
            if size > DISCARDED * self.limits.max_bytes:
                break
            if size <= self.limits.max_bytes:
                parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        if size > self.limits.max_bytes:
            raise self._too_large()
        return b"".join(parts)

    def _too_large(self) -> Refusal:
        return Refusal(
            413, f"the request has more than {self.limits.max_bytes:,} bytes; send less at a time",
            [("connection", "close")],
        )  # fmt: skip

    def _check_host(self, host: str) -> None:
        """A page elsewhere, whose name was made to point to this machine, must not read answers."""
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.hosts is not None and name.lower() not in self.hosts:
            raise Refusal(400, f"the Host header is {host[:100]!r}; expected one of {', '.join(sorted(self.hosts))}")

    def _check_token(self, authorization: str) -> None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), (self.token or "").encode()):
            raise Refusal(
                401, "the token is missing or wrong; send the header Authorization: Bearer TOKEN",
                [("www-authenticate", "Bearer")],
            )  # fmt: skip

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, out: _Out) -> None:
        if self.answering >= self.limits.max_requests:
            raise Refusal(
                429, f"{self.answering} requests are being answered; try again in a second", [("retry-after", "1")]
            )
        self.answering += 1
        self.metrics.answering.set(self.answering)
        try:
            await self.app(scope, receive, out)
        finally:
            self.answering -= 1
            self.metrics.answering.set(self.answering)


class _Gone(Exception):
    """The client has gone."""


class _Out:
    """Sends an answer with the security headers."""

    def __init__(self, send: Send) -> None:
        self.send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name for name, _ in message.get("headers", [])}
            message["headers"] = [*message.get("headers", []), *(h for h in HEADERS if h[0] not in own)]
        await self.send(message)

    async def refuse(self, refusal: Refusal) -> None:
        body = error_body(refusal.status, refusal.message)
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": refusal.status, "headers": encoded})
        await self({"type": "http.response.body", "body": body})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The messages of a request whose body has been read."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again
