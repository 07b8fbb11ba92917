"""Terminal handling: one-line errors and exit codes, signals, messages."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import IO, Any, NoReturn

import click

from snm import system
from snm.cli.bars import print_line
from snm.errors import SnmError
from snm.progress import ignore

MAX_MESSAGE = 2000  # characters
_LONG_WORD = re.compile(r"(\S{100})\S{300,}(\S{100})")
_CLOSED: list[IO[str]] = []
OUT_OF_MEMORY = "out of memory; give less --memory or a smaller text"


class Group(click.Group):
    """The group of all commands. Errors that a user can act on become one line and an exit code."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        prepare_streams()
        try:
            return super().main(*arguments, **options)
        except OSError as error:  # while help is printed
            end_with(error)

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _short_usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with Interrupts(), _short_usage_errors():
                return super().invoke(ctx)
        except SnmError as error:
            end(str(error), 2)
        except BrokenPipeError:
            drop_output()
            sys.exit(141)
        except KeyboardInterrupt:
            end("interrupted", 130)
        except OSError as error:
            end_with(error)
        except (MemoryError, EOFError) as error:
            end(str(error) or OUT_OF_MEMORY, 1)
        except RuntimeError as error:
            if "can't start new thread" not in str(error):
                raise
            end(f"cannot start a thread: {OUT_OF_MEMORY}", 1)


@contextmanager
def _short_usage_errors() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = one_line(error.message)
        raise


def prepare_streams() -> None:
    """Make standard output and error accept every character: files and pipes are UTF-8, a terminal shows a `?`.

    A stream that was closed becomes the null device: no file that is opened later gets its number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            null = open(os.devnull, "r" if number == 0 else "w", encoding="utf-8")  # noqa: SIM115  open until the end
            if number:
                setattr(sys, name, null)
            else:
                _CLOSED.append(null)  # a command that reads from it says that it is closed
        elif number and isinstance(stream, io.TextIOWrapper):
            if stream.isatty():
                stream.reconfigure(errors="replace")
            else:
                stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def drop_output() -> None:
    """Keep Python from writing, and failing again, when it closes standard output at the end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def one_line(message: str) -> str:
    """A message without line ends and control characters, which names of files may have; long words and texts cut."""
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
    message = _LONG_WORD.sub(r"\1...\2", message)
    with suppress(UnicodeEncodeError):  # bytes of names that are not in the system's encoding may be UTF-8
        message = message.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)


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
        handled = [n for n in system.STOP_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]  # nohup ignores SIGHUP
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
            if error is not None and self._raised is not None and error is not self._raised:
                raise self._raised  # Numba makes a SystemError of it
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
            system.send_again(number)

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


def end_with(error: OSError) -> NoReturn:
    name = error.filename2 or error.filename
    where = "" if name is None else f": {os.fsdecode(name)}"
    hint = "; free some, or write to another disk" if error.errno == errno.ENOSPC else ""
    end(f"{error.strerror}{where}{hint}" if error.strerror else str(error), 1)


def end(message: str, code: int) -> NoReturn:
    with suppress(OSError):
        click.echo(f"snm: {one_line(message)}", err=True)
    try:
        sys.stdout.flush()
    except OSError:  # a full disk
        drop_output()
    sys.exit(code)


def notify(quiet: bool = False, as_json: bool = False) -> Callable[[str], None]:
    """A function that prints messages to standard error: as they are or, with `as_json`, each as a line of JSON."""
    if quiet:
        return ignore
    return lambda message: print_line({"message": message}) if as_json else click.echo(one_line(message), err=True)
