"""A shim in the child's own Python that counts every change of the disk, and kills the process or fails at one of them.

It replaces what Python code writes through: `open` and the files that it makes, and the functions of `os`. Arrays that
are mapped are written by the system; their disk is reserved first (`posix_fallocate`), which is counted.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO}
GROWS = {"create", "write", "mkdir", "link", "fallocate", "copy"}  # what a full disk refuses
REMOVES = {"unlink", "rmdir"}  # what is no write; a process may be killed there
_OS_FUNCTIONS = {
    "mkdir": "mkdir", "rmdir": "rmdir", "unlink": "unlink", "remove": "unlink", "rename": "rename",
    "replace": "rename", "link": "link", "symlink": "link", "fsync": "sync", "ftruncate": "truncate",
    "truncate": "truncate", "posix_fallocate": "fallocate", "sendfile": "copy", "write": "write",
}  # fmt: skip


@dataclass
class Shim:
    """`action` at the change number `at` below `root`: kill, ENOSPC (from then on), EIO (once); None: count only."""

    root: str
    at: int = -1
    action: str | None = None
    changes: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def change(self, what: str, where: Any, half: Callable[[], int] | None = None) -> int | None:
        """Note a change. `half` does a half of a write; what it returns is the number of bytes of a short write."""
        path = _path_of(where)
        if path is None or not path.startswith(self.root):
            return None
        with self._lock:
            number = len(self.changes)
            self.changes.append(f"{what} {path.removeprefix(self.root)}")
        if self.action == "kill" and number == self.at:
            if half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "EIO" and number == self.at and what not in REMOVES:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        elif self.action == "ENOSPC" and number >= self.at >= 0 and what in GROWS:
            if number == self.at and half is not None:
                return half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return None

    def install(self) -> None:
        """Replace what this process writes through, for the rest of its life."""
        shim = self

        class File(io.FileIO):
            def __init__(self, file: Any, *more: Any) -> None:
                if not isinstance(file, int):
                    shim.change("create", file)
                super().__init__(file, *more)

            def write(self, data: Any) -> int:
                view = memoryview(data).cast("B")
                half = (lambda: io.FileIO.write(self, view[: len(view) // 2])) if len(view) > 1 else None
                short = shim.change("write", self.fileno(), half)
                return super().write(view) if short is None else short

            def truncate(self, size: int | None = None) -> int:
                shim.change("truncate", self.fileno())
                return super().truncate(size)

        real_open = io.open

        def opened(
            file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None,
            newline: str | None = None, closefd: bool = True, opener: Any = None,
        ) -> Any:  # fmt: skip
            if not set(mode) & set("wax+"):
                return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            raw = File(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
            buffer: Any = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
            return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline)

        builtins.open = io.open = opened
        for name, what in _OS_FUNCTIONS.items():
            if hasattr(os, name):
                setattr(os, name, self._counted(what, getattr(os, name)))
        self._install_pwritev()
        self._install_rest()

    def _counted(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(path: Any, *more: Any, **options: Any) -> Any:
            directory = options.get("dir_fd")
            self.change(what, path if directory is None else f"{_path_of(directory)}/{os.fsdecode(path)}")
            return function(path, *more, **options)

        return call

    def _install_pwritev(self) -> None:
        pwritev = os.pwritev

        def call(handle: int, buffers: Any, at: int) -> int:
            view = memoryview(buffers[0]).cast("B")
            half = (lambda: pwritev(handle, [view[: len(view) // 2]], at)) if len(view) > 1 else None
            short = self.change("write", handle, half)
            return pwritev(handle, buffers, at) if short is None else short

        os.pwritev = call  # type: ignore[assignment]

    def _install_rest(self) -> None:
        from snm import system

        exchange = system.exchange
        system.exchange = lambda a, b: (self.change("rename", a), exchange(a, b))[1]
        make = os.open

        def make_counted(path: Any, flags: int, *more: Any, **options: Any) -> int:
            if flags & (os.O_CREAT | getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY):
                self.change("create", path)
            return make(path, flags, *more, **options)

        os.open = make_counted
        for module in (np.lib.format, getattr(np.lib, "_format_impl", None)):  # else NumPy writes in C
            if hasattr(module, "isfileobj"):
                module.isfileobj = lambda file: False  # type: ignore[union-attr]


def _path_of(where: Any) -> str | None:
    """The path of a file, an open one among them."""
    if isinstance(where, int):
        try:
            return os.readlink(f"/proc/self/fd/{where}")
        except OSError:
            return None
    if hasattr(where, "fileno"):
        return _path_of(where.fileno())
    return os.path.abspath(os.fsdecode(where))
