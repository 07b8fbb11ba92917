"""A server in a thread, for the tests of the API and of the page."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from snm.model import LanguageModel
from snm.server.app import create_app
from snm.server.limits import Limits
from snm.server.serving import allowed_hosts, listen, make_server


@contextmanager
def serving(models: Mapping[str, LanguageModel], limits: Limits | None = None, **options: Any) -> Iterator[str]:
    """The address of a server that runs in this context."""
    limits, ready = limits or Limits(), threading.Event()
    address = listen("127.0.0.1", 0)
    app = create_app(models, limits, hosts=allowed_hosts("127.0.0.1"), **options)
    server = make_server(app, limits, ready.set, 5)
    thread = threading.Thread(target=server.run, args=([address],))
    thread.start()
    try:
        assert ready.wait(20)
        yield f"http://127.0.0.1:{address.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
