"""Linux, macOS and Windows: the package runs without the calls that a system lacks, with the same results.

The tests run on Linux. `imitate` removes what the Python of another system does not have, and refuses what Windows does
not do: rename, replace or remove a file that is open or mapped, or a folder with one.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import io
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "snm"
LACKING: dict[str, dict[ModuleType, str]] = {
    "macos": {
        os: "O_DIRECT O_TMPFILE posix_fallocate posix_fadvise preadv pwritev sched_getaffinity sched_setaffinity "
        "memfd_create copy_file_range sendfile splice eventfd getrandom",
        signal: "SIGPWR SIGSTKFLT SIGPOLL SIGRTMIN SIGRTMAX sigtimedwait sigwaitinfo",
        mmap: "MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_REMOVE MADV_DONTFORK MADV_DOFORK MADV_MERGEABLE MADV_HWPOISON "
        "MADV_DONTDUMP MAP_POPULATE MAP_DENYWRITE MAP_EXECUTABLE MAP_STACK",
    },
    "windows": {
        os: "O_DIRECT O_DIRECTORY O_NOFOLLOW O_TMPFILE O_SYNC O_CLOEXEC O_NONBLOCK posix_fallocate posix_fadvise pread "
        "preadv pwrite pwritev readv writev sched_getaffinity sched_setaffinity sysconf sysconf_names getuid geteuid "
        "getgid getegid uname fork forkpty wait3 wait4 killpg getpgid setsid mkfifo mknod chown fchown lchown "
        "sync fdatasync nice getloadavg getpriority memfd_create copy_file_range sendfile splice eventfd "
        "getrandom getxattr setxattr openpty ttyname ctermid chroot lockf",
        signal: "SIGHUP SIGQUIT SIGTRAP SIGKILL SIGUSR1 SIGUSR2 SIGPIPE SIGALRM SIGCHLD SIGCONT SIGSTOP SIGTSTP "
        "SIGTTIN SIGTTOU SIGBUS SIGWINCH SIGXCPU SIGXFSZ alarm pause pthread_kill pthread_sigmask setitimer "
        "siginterrupt sigpending sigtimedwait sigwait sigwaitinfo",
        mmap: "MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_WILLNEED MADV_DONTNEED MADV_SEQUENTIAL MADV_RANDOM MADV_NORMAL "
        "MAP_PRIVATE MAP_SHARED MAP_ANON MAP_ANONYMOUS MAP_POPULATE PROT_READ PROT_WRITE PROT_EXEC",
    },
}
NO_MODULES = {
    "macos": {"spwd"},
    "windows": {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"},
}


# ---------------------------------------------------------------------------------------------
# another system


def imitate(system: str) -> None:
    """Make this process, on Linux, like one of another system. Called before the package is imported."""
    import click.testing
    import numba
    import zstandard

    assert numba
    assert click.testing
    assert zstandard  # these know their systems, and are imported as they are
    if system == "windows":
        sys.modules["msvcrt"] = _msvcrt()
    for module, names in LACKING[system].items():
        for name in names.split():
            vars(module).pop(name, None)
    sys.meta_path.insert(0, _NoModules(NO_MODULES[system]))
    for name in NO_MODULES[system]:
        sys.modules.pop(name, None)
    _hide_proc()
    real_library = ctypes.CDLL

    def library(name: str | None, *arguments: Any, **more: Any) -> object:
        if name is not None:
            return real_library(name, *arguments, **more)
        if system == "windows":
            raise TypeError("bad argument type for built-in operation")
        return object()  # the C library of macOS, without the calls of Linux

    vars(ctypes)["CDLL"] = library
    vars(tempfile)["_O_TMPFILE_WORKS"] = vars(shutil)["_USE_CP_SENDFILE"] = False
    if system == "windows":
        _imitate_windows()


class _NoModules:
    """Refuses to import modules that a system does not have."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _hide_proc() -> None:
    real = io.open

    def opened(file: Any, *arguments: Any, **more: Any) -> Any:
        if str(file) == "/proc/self/statm":
            raise FileNotFoundError(2, "No such file or directory", file)
        return real(file, *arguments, **more)

    vars(io)["open"] = vars(builtins)["open"] = opened


def _msvcrt() -> ModuleType:
    """The module that has Windows' locks of files."""
    import fcntl

    def locking(handle: int, mode: int, length: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None

    made = ModuleType("msvcrt")
    vars(made).update(locking=locking, LK_NBLCK=2)
    return made


class _WindowsMapping(mmap.mmap):
    """A mapping without the arguments and the methods of Unix."""

    def __new__(cls, fileno: int, length: int, tagname: None = None, access: int = 0, offset: int = 0) -> Any:
        return super().__new__(cls, fileno, length, access=access, offset=offset)

    @property
    def madvise(self) -> Any:
        raise AttributeError("madvise")


def _imitate_windows() -> None:
    real_open, real_sync, real_unlink = os.open, os.fsync, os.unlink
    vars(mmap)["mmap"] = _WindowsMapping
    for name in ("rename", "replace", "unlink", "remove", "rmdir"):
        setattr(os, name, _refusing(getattr(os, name)))

    def temporary_file(mode: str = "w+b", buffering: int = -1, dir: Any = None) -> Any:
        """A file that exists until it is closed and no longer mapped: `_used_files` names it."""
        handle, name = tempfile.mkstemp(dir=dir)
        real_unlink(name)
        return open(handle, mode, buffering)

    vars(tempfile)["TemporaryFile"] = temporary_file
    writable: dict[int, bool] = {}

    def opened(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        if (
            os.path.isdir(path)
            and "dir_fd" not in more
            and sys._getframe(1).f_code.co_filename.startswith(str(PACKAGE))
        ):
            raise PermissionError(13, "Permission denied", path)
        handle = real_open(path, flags, *arguments, **more)
        writable[handle] = bool(flags & (os.O_RDWR | os.O_WRONLY))
        return handle

    def synced(handle: int) -> None:
        if not writable.get(handle, True):
            raise OSError(9, "Bad file descriptor")
        real_sync(handle)

    def killed(*arguments: object) -> None:
        raise AssertionError("on Windows os.kill ends the process")

    vars(os).update(open=opened, fsync=synced, kill=killed)


def _refusing(change: Callable[..., None]) -> Callable[..., None]:
    """A call of `os` that refuses paths in use, as Windows does."""

    def refuse(*arguments: Any, dir_fd: int | None = None, **more: Any) -> None:
        folder = os.getcwd() if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        used = list(_used_files())
        for argument in arguments:
            path = os.path.abspath(os.path.join(folder, os.fspath(argument)))
            for file in used:
                if (file + "/").startswith(path + "/"):
                    raise PermissionError(13, f"Access is denied ({file} is in use)", path)
        if dir_fd is not None:
            more["dir_fd"] = dir_fd
        change(*arguments, **more)

    return refuse


def _used_files() -> Iterator[str]:
    """The files that this process has open or mapped. Deleted ones too: Windows deletes them when they are closed."""
    handle = os.open("/proc/self/maps", os.O_RDONLY)
    try:
        lines = b"".join(iter(lambda: os.read(handle, 1 << 20), b"")).decode().split("\n")
    finally:
        os.close(handle)
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            yield fields[5].removesuffix(" (deleted)")
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            file = os.readlink(f"/proc/self/fd/{number}").removesuffix(" (deleted)")
            if not os.path.isdir(file):
                yield file


# ---------------------------------------------------------------------------------------------
# what is run there


def tour(folder: Path) -> dict[str, Any]:
    """Train, score, verify, replace, mix, export and interrupt; return figures that are the same on every system."""
    import snm
    from snm.baselines.backoff.kneser_ney import KneserNey
    from snm.memory import Peak
    from snm.settings import Settings
    from tests.conftest import write_bigrams
    from tests.test_cli import fails, ok, run

    text = write_bigrams(folder / "train.txt", 1, 6000, 200, 5)
    test = write_bigrams(folder / "test.txt", 2, 100, 200, 5)
    figures: dict[str, Any] = {}
    said: list[str] = []

    def listed() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    def train(name: str, **how: Any) -> None:
        settings = Settings(threads=2, folds=0, **how)
        with snm.train(text, folder / name, settings, force=True, notify=said.append) as model:
            figures[name] = {"files": model.manifest["files"], "ppl": model.perplexity(test).ppl}

    for _ in range(2):  # the second replaces the first
        train("snm", partitions=20)
        train("kn", model="kn", order=3)
    assert any("of disk: memory is small" in line for line in said), "links are spilled"
    assert any("counting again" in line for line in said), "arrays that were mapped are dropped"
    assert any("with a gate" in line or "a gate does not" in line for line in said)
    for _ in range(2):
        snm.mix([folder / "snm", folder / "kn"], test, folder / "mixed", force=True).close()
    figures["ppl"] = json.loads(ok("ppl", folder / "mixed", test, "--json"))["ppl"]
    figures["next"] = ok("next", folder / "snm", "w1 w2", "-k", "3")
    figures["scores"] = ok("score", folder / "kn", test)
    ok("verify", folder / "snm", test)
    for _ in range(2):
        ok("export", folder / "kn", folder / "kn.arpa")
    figures["arpa"] = (folder / "kn.arpa").read_bytes().decode()
    figures["ppl of the file"] = json.loads(ok("ppl", folder / "kn.arpa", test, "--json"))["ppl"]
    with Peak() as peak:
        assert peak.bytes >= 0
    before = listed()

    def interrupt(*arguments: object) -> None:
        signal.raise_signal(signal.SIGINT)

    real, KneserNey.estimate = KneserNey.estimate, interrupt  # type: ignore[method-assign,assignment]
    for name in ("new", "kn"):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        stopped = run("train", text, "-o", folder / name, "--model", "kn", "--force")
        assert (stopped.exit_code, stopped.stderr.strip().split("\n")[-1]) == (130, "snm: interrupted"), stopped
        assert listed() == before, "nothing is left behind"
    KneserNey.estimate = real  # type: ignore[method-assign]
    with snm.load(folder / "kn") as opened:
        score = opened.score("w1 w2")
        try:
            snm.train(text, folder / "kn", Settings(model="kn", order=2, threads=1), force=True).close()
        except snm.SnmError as error:
            kept = Path(str(error).rpartition(" ")[2])
            figures["refused"] = "does a program have it open?" in str(error)
        else:
            kept = folder / "kn"
        assert opened.score("w1 w2") == score
    assert snm.load(kept).manifest["features"] == "ngram(0..1)"
    assert listed() == sorted({kept.name, *before})
    if "refused" in figures:
        with open(folder / "kn.arpa", "rb"):
            assert "close the programs that have it open" in fails("export", folder / "kn", folder / "kn.arpa")
        assert listed() == sorted({kept.name, *before})
    return figures


def test_a_system_without_these_calls_gives_the_same_results(tmp_path_factory: pytest.TempPathFactory) -> None:
    if sys.platform != "linux":
        pytest.skip("needs Linux; the other tests run on this system as it is")
    found = {}
    for system in ("linux", *LACKING):
        folder = tmp_path_factory.mktemp(system)
        command = [sys.executable, "-m", "tests.test_platforms", system, str(folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{system}: {done.stderr}"
        found[system] = json.loads(done.stdout)
    assert found["windows"].pop("refused") is True
    assert found["macos"] == found["linux"]
    assert found["windows"] == found["linux"]


def test_a_signal_is_sent_again_as_windows_can(monkeypatch: pytest.MonkeyPatch) -> None:
    from snm import system

    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        system.send_again(signal.SIGTERM)
        monkeypatch.delattr(signal, "pthread_kill", raising=False)
        monkeypatch.setattr(os, "kill", lambda *arguments: pytest.fail("on Windows it ends the process"))
        system.send_again(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM] * 2


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """`nohup snm train` survives a hang-up."""
    from snm.cli.terminal import Interrupts
    from snm.system import STOP_SIGNALS

    before = [signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS]
    try:
        with Interrupts():
            assert {signal.getsignal(number) for number in STOP_SIGNALS} == {signal.SIG_IGN}
    finally:
        for number, handler in zip(STOP_SIGNALS, before, strict=True):
            signal.signal(number, handler)


# ---------------------------------------------------------------------------------------------
# one module for all of it


def _sources() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path, node


def test_one_module_has_every_call_that_a_system_lacks() -> None:
    lacking = {
        f"{module.__name__}.{name}"
        for modules in LACKING.values() for module, names in modules.items() for name in names.split()
    } | {"os.kill", "os.fsync", "os.symlink", "os.statvfs", "sys.platform", "os.name"}  # fmt: skip
    modules = set().union(*NO_MODULES.values()) | {"ctypes", "msvcrt", "winreg", "platform"}
    found = []
    for path, node in _sources():
        used: set[str] = set()
        if isinstance(node, ast.Import):
            used = {alias.name for alias in node.names} & modules
        elif isinstance(node, ast.ImportFrom):
            used = {node.module or ""} & modules | {f"{node.module}.{alias.name}" for alias in node.names} & lacking
        elif isinstance(node, ast.Attribute):
            used = {f"{ast.unparse(node.value)}.{node.attr}"} & lacking | {node.attr} & {"madvise"}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used = {node.value} if node.value.startswith(("/proc/", "/dev/", "/sys/")) else set()
        if used and path.name != "system.py":
            found.append(f"{path.relative_to(PACKAGE)}: {', '.join(sorted(used))}")
    assert found == [], "call a function of snm/system.py"


def test_text_files_name_their_encoding() -> None:
    """The encoding that Python takes otherwise depends on the system."""
    found = []
    for path, node in _sources():
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        mode = next((a.value for a in node.args[1:2] if isinstance(a, ast.Constant)), "r")
        method = isinstance(node.func, ast.Attribute)
        text = name in ("read_text", "write_text") if method else name == "open" and "b" not in str(mode)
        if text and not any(keyword.arg == "encoding" for keyword in node.keywords):
            found.append(f"{path.relative_to(PACKAGE)}, line {node.lineno}")
    assert found == []


if __name__ == "__main__":
    if sys.argv[1] in LACKING:
        imitate(sys.argv[1])
    print(json.dumps(tour(Path(sys.argv[2]))))
