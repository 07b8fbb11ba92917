"""Terminal handling: one-line errors and exit codes, signals, progress bars, messages."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn

import click

from snm.errors import SnmError


class Group(click.Group):
    """The group of all commands. Errors that a user can act on become one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with Interrupts():
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


class Interrupts:
    """A context in which signals raise an exception, so that unfinished files are removed.

    The exception can be lost: Python ignores it in callbacks, and some libraries catch every exception. So the signal
    is sent again until the exception is being handled. The handling itself is not interrupted.
    """

    INTERVAL = 0.1  # seconds

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._ended = threading.Event()
        self._resending: threading.Thread | None = None

    def __enter__(self) -> None:
        handled = [signal.SIGTERM, signal.SIGHUP]
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore SIGINT
            handled.append(signal.SIGINT)
        self._before = {number: signal.signal(number, self._stop) for number in handled}
        self._default_hook, sys.unraisablehook = sys.unraisablehook, self._unraisable

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        sys.unraisablehook = self._default_hook
        if self._resending is not None:
            self._resending.join()
            return  # the process is ending; later signals are ignored
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._ended.is_set() or self._is_handling():
            return
        if self._raised is None:
            self._raised = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
            self._resending = threading.Thread(target=self._resend, args=(number,), daemon=True)
            self._resending.start()
        raise self._raised

    def _resend(self, number: int) -> None:
        while not self._ended.wait(self.INTERVAL):
            os.kill(os.getpid(), number)

    def _is_handling(self) -> bool:
        """Whether a handler of our exception is running."""
        error = sys.exc_info()[1]
        while error is not None and error is not self._raised:
            error = error.__context__
        return error is not None

    def _unraisable(self, unraisable: Any) -> None:
        """Report an exception that Python ignores, unless it is ours."""
        if self._raised is None or unraisable.exc_value is not self._raised:
            self._default_hook(unraisable)


def end(message: str, code: int) -> NoReturn:
    click.echo(f"snm: {message}", err=True)
    sys.exit(code)


@contextmanager
def bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error if that is a terminal; with a total of 0, a counter of megabytes."""
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
    """A function that prints messages to standard error, or nothing if `quiet`."""
    return (lambda message: None) if quiet else (lambda message: click.echo(message, err=True))
