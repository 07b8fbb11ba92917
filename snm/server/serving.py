"""Running the server: its address, its signals, and connections that say nothing."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from snm.errors import SettingsError
from snm.server.guard import App
from snm.server.limits import Limits

CONNECTIONS = 1000
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Protocol(H11Protocol):
    """HTTP on a connection that is closed if the client is too slow: to send the head of a request, or to read."""

    seconds: float
    _head: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        """Start the clock where the head of a request is not complete, and stop it where it is."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            _stop(self._head)
            self._head = None
        elif self._head is None:
            self._head = self.loop.call_later(self.seconds, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reading is None:
            self._reading = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _stop(self._reading)
        self._reading = None

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._head)
        _stop(self._reading)
        super().connection_lost(exc)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class Server(uvicorn.Server):
    """A server that ends when it is told to, after the requests that it has begun."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[override, unused-ignore]
        """As uvicorn's, but a signal that was obeyed is not raised again."""
        in_main = threading.current_thread() is threading.main_thread()
        handled = (signal.SIGINT, signal.SIGTERM) if in_main else ()
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"--host {host}: {error}; expected a name or an address of this machine") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(2048)
    except OSError as error:
        made.close()
        raise SettingsError(f"cannot listen at {host}, port {port}: {error.strerror}; give another --port") from None
    return made


def is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def allowed_hosts(host: str) -> list[str] | None:
    """What the Host header may say: on this machine alone its names, elsewhere anything."""
    return sorted({*LOOPBACK, host}) if is_loopback(host) else None


def make_server(app: App, limits: Limits, ready: Callable[[], None], grace: float) -> Server:
    """A server of an application; `grace`: seconds that requests get to finish when it ends."""
    protocol = type("LimitedProtocol", (Protocol,), {"seconds": limits.seconds})
    config = uvicorn.Config(
        app, http=protocol, ws="none", lifespan="on", log_config=None, log_level="error", access_log=False,
        server_header=False, limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=max(1, round(grace)),
        proxy_headers=False,
    )  # fmt: skip
    return Server(config, ready)
