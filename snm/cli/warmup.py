"""The command warmup, and the bar that other commands show while kernels are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from snm.cli.bars import Bars
from snm.cli.terminal import notify
from snm.progress import Advance

KERNELS = {"train": 95, "count": 45, "kn": 40, "next": 60, "score": 80, "all": 232}
"""About how many functions this process compiles for a command, for the length of its bar; a second compiles others."""


@contextmanager
def compiling(command: str, as_json: bool = False, quiet: bool = False) -> Iterator[None]:
    """Say so, with a bar, when kernels are compiled in this context; on most days none is."""
    from numba.core import event

    left = KERNELS[command]
    bars: list[Advance] = []

    class Listener(event.Listener):  # type: ignore[misc]
        """Opens a bar when Numba begins to compile, and advances it by each function."""

        def on_start(self, event: Any) -> None:
            if not bars:
                notify(quiet, as_json)("compiling kernels for this machine, which happens once")
                bars.append(shown.enter_context(Bars(as_json, quiet)("compiling", KERNELS[command])))

        def on_end(self, event: Any) -> None:
            nonlocal left
            bars[0](1 if left > 0 else 0)
            left -= 1

    with ExitStack() as shown, event.install_listener("numba:compile", Listener()):
        yield
        for advance in bars:
            advance(max(left, 0))


@click.command()
def warmup() -> None:
    """Compile all kernels now, for an image or a new machine.

    The first training on a machine compiles for about fifteen seconds, the first prediction for about ten. After this
    command they do not. Kernels are kept beside the package, in NUMBA_CACHE_DIR if that is set, or in the user's cache.
    """
    from snm.warmup import compile_everything

    with compiling("all"):
        compile_everything()
    click.echo("kernels are compiled")
