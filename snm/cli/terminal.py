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
from types import FrameType, TracebackType
from typing import Any, NoReturn

import click

from snm.errors import SnmError


class Group(click.Group):
    """Turns every error that is for a person into one line and an exit code."""

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
    """Signals end the work inside by an exception, so that what is unfinished is cleared away.

    Such an exception can be lost: Python ignores it in callbacks, and libraries catch whatever comes. So the signal
    is sent again until a handler of the exception is seen at work, which nothing interrupts then.
    """

    AGAIN = 0.1  # seconds

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._ended = threading.Event()
        self._insisting: threading.Thread | None = None

    def __enter__(self) -> None:
        heeded = [signal.SIGTERM, signal.SIGHUP]
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs are deaf to it
            heeded.append(signal.SIGINT)
        self._before = {number: signal.signal(number, self._stop) for number in heeded}
        self._tell_ignored, sys.unraisablehook = sys.unraisablehook, self._ignored

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        sys.unraisablehook = self._tell_ignored
        if self._insisting is not None:
            self._insisting.join()
            return  # the process ends; what arrives now is ignored
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._ended.is_set() or self._clearing_up():
            return
        if self._raised is None:
            self._raised = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
            self._insisting = threading.Thread(target=self._insist, args=(number,), daemon=True)
            self._insisting.start()
        raise self._raised

    def _insist(self, number: int) -> None:
        while not self._ended.wait(self.AGAIN):
            os.kill(os.getpid(), number)

    def _clearing_up(self) -> bool:
        handled = sys.exc_info()[1]
        while handled is not None and handled is not self._raised:
            handled = handled.__context__
        return handled is not None

    def _ignored(self, unraisable: Any) -> None:
        if self._raised is None or unraisable.exc_value is not self._raised:
            self._tell_ignored(unraisable)


def end(message: str, code: int) -> NoReturn:
    click.echo(f"snm: {message}", err=True)
    sys.exit(code)


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
