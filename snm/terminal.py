"""What the command line needs of a terminal: types of parameters, the option that most commands have, errors on one
line, progress bars, messages.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from snm.errors import SnmError


class Size(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number of bytes such as 500M or 4G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).upper().removesuffix("B")
        number, unit = text[:-1], text[-1:]
        if str(value).isdecimal():
            return int(value)
        try:
            return int(float(number) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[unit])
        except (KeyError, ValueError, OverflowError):
            self.fail(f"{value!r} is not a size; expected a number with K, M, G or T, such as 4G", param, ctx)


class Number(click.IntRange):
    """A whole number, shown as N."""

    name = "N"


threads_option = click.option("--threads", type=Number(1), help="Threads.  [default: all cores]")


def chosen_threads(threads: int | None) -> int:
    from snm.parallel import default_threads

    return threads or default_threads()


class Group(click.Group):
    """Turns every error that is for a person into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        for number in (signal.SIGTERM, signal.SIGHUP):  # so that unfinished work is cleared away
            signal.signal(number, stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, stop)
        try:
            return super().invoke(ctx)
        except SnmError as error:
            end(str(error), 2)
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(141)
        except KeyboardInterrupt:
            end("interrupted", 130)
        except (OSError, MemoryError) as error:
            end(f"{error}" or "out of memory; give less --memory or a smaller text", 1)


def stop(number: int, frame: FrameType | None) -> None:
    """End the process by an exception; a little later where LLVM calls Python, for there it would be lost."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("llvmlite."):
            again = threading.Timer(0.05, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def end(message: str, code: int) -> NoReturn:
    click.echo(f"snm: {message}", err=True)
    sys.exit(code)


def import_modules(ctx: click.Context, param: click.Parameter, modules: tuple[str, ...]) -> None:
    sys.path.insert(0, "")
    for module in modules:
        path = Path(module)
        if path.suffix == ".py":
            sys.path.insert(0, str(path.parent))
            module = path.stem
        try:
            import_module(module)
        except Exception as error:
            raise click.BadParameter(f"cannot import {module}: {type(error).__name__}: {error}") from error


@contextmanager
def bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal's standard error, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda n: None
        return
    lock = threading.Lock()
    if total:
        with click.progressbar(length=total, label=f"{label:<14}", file=sys.stderr, width=40) as shown:

            def advance(n: int) -> None:
                with lock:
                    shown.update(n)

            yield advance
        return
    done = 0

    def count(n: int) -> None:
        nonlocal done
        with lock:
            done += n
            click.echo(f"\r{label:<14}  {done / 1e6:.0f} MB", err=True, nl=False)

    yield count
    click.echo(err=True)


def notify(quiet: bool) -> Callable[[str], None]:
    return (lambda message: None) if quiet else (lambda message: click.echo(message, err=True))
