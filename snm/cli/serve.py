"""The command serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from snm.cli.options import Number, Size, chosen_threads, import_option, load_model, threads_option
from snm.cli.terminal import notify, one_line
from snm.cli.warmup import compiling
from snm.errors import MissingExtra, SettingsError

if TYPE_CHECKING:
    from snm.model import LanguageModel


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL...")
@click.option("--port", type=Number(0, 65535), default=8000, show_default=True, help="0 takes a free port.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Where to listen; 0.0.0.0 is every address of this machine.")  # fmt: skip
@click.option("--token", metavar="TEXT", envvar="SNM_TOKEN", show_envvar=True,
              help="Answer only requests that have the header Authorization: Bearer TEXT.")  # fmt: skip
@click.option("--max-bytes", type=Size(), default="1M", show_default=True, help="Most bytes of a request.")
@click.option("--max-seconds", type=float, default=30.0, show_default=True,
              help="Longest time for a request to arrive, and for its answer.")  # fmt: skip
@click.option("--max-requests", type=Number(1), default=64, show_default=True,
              help="Requests answered at a time, waiting ones included.")  # fmt: skip
@threads_option
@import_option
def serve(
    models: tuple[str, ...], port: int, host: str, token: str | None, max_bytes: int, max_seconds: float,
    max_requests: int, threads: int | None,
) -> None:  # fmt: skip
    """Serve models by HTTP: a page for the browser, and an API for programs.

    Open the address that it prints. The API has score, perplexity, next, explain and generate, and OpenAI's completions
    at /v1 (docs/serving.md). A model has the name of its folder, or the given one. Ctrl+C or SIGTERM ends the server
    when it has answered the requests that it has begun.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "fastapi", "serve", "snm serve") from None
    from snm.server.app import create_app
    from snm.server.limits import Limits
    from snm.server.serving import allowed_hosts, is_loopback, listen, make_server

    limits = Limits(max_bytes, max_seconds, max_requests)
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token or not token):
        raise SettingsError("--token has a space or a special character; expected ASCII letters, digits and signs")
    named = name_models(models)
    with listen(host, port) as address:
        opened = {name: _open(path) for name, path in named.items()}
        number = address.getsockname()[1]
        app = create_app(opened, limits, token=token, hosts=allowed_hosts(host), threads=chosen_threads(threads))
        if token is None and not is_loopback(host):
            notify()("warning: everyone who reaches this machine can use the server; --token limits that")
        where = f"[{host}]" if ":" in host else host
        ready = f"serving {', '.join(opened)} at http://{where}:{number}/  (Ctrl+C ends)"
        make_server(app, limits, lambda: notify()(ready), limits.seconds).run([address])


def name_models(models: tuple[str, ...]) -> dict[str, str]:
    """The models by their names: NAME=MODEL, or the name of the folder without its ending."""
    named: dict[str, str] = {}
    for given in models:
        name, separator, path = given.partition("=")
        if not separator or "/" in name:
            path = given
            name = Path(given.rstrip("/")).name.removesuffix(".model").removesuffix(".arpa")
        if not name or one_line(name) != name:
            raise SettingsError(f"{given!r} gives no name; expected NAME=MODEL")
        if name in named:
            raise SettingsError(f"two models are called {name}; give them names: NAME=MODEL")
        named[name] = path
    return named


def _open(path: str) -> LanguageModel:
    """A model whose kernels are compiled, so that the first request does not wait."""
    model = load_model(path, "next")
    with compiling("score"):
        model.score_sentences(["a word"], spelled=model.spelling is not None)
    return model
