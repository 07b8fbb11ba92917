"""What differs between operating systems: each call that some system lacks, with a plain substitute.

What a system can do is found by the names that its Python has. Other modules use no such name, which
tests/test_platforms.py checks.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

STOP_SIGNALS: list[signal.Signals] = [
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
]
"""Signals beside SIGINT that end a program."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of Linux
_MADV_POPULATE_READ = 22  # of Linux; Python has no name for it
_ZEROS = bytes(1 << 20)
_SEEKING = threading.Lock()


# ---------------------------------------------------------------------------------------------
# files and folders


def sync(path: Path) -> None:
    """Write a file or a folder to disk. Windows can sync no folder, and a file only if it is open for writing."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(path, os.O_RDONLY)
    elif path.is_dir() or not os.access(path, os.W_OK):
        return
    else:
        handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError as error:
        error.filename = str(path)  # for the message
        raise
    finally:
        os.close(handle)


def exchange(a: Path, b: Path) -> bool:
    """Exchange two folders in one step; False where the system cannot. Linux can, with most file systems."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0)


def lock(file: IO[bytes], wait: bool = False) -> bool:
    """Lock an open file until it is closed; False if another opening of it is. OSError: this disk has no locks."""
    try:
        fcntl: Any = import_module("fcntl")
    except ImportError:
        return _lock_on_windows(file, wait)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _lock_on_windows(file: IO[bytes], wait: bool) -> bool:
    try:
        msvcrt: Any = import_module("msvcrt")
    except ImportError:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)) from None
    file.seek(0)
    while True:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            return True
        except PermissionError:
            if not wait:
                return False
            time.sleep(0.05)


def lock_folder(folder: Path, wait: bool = False) -> int | None:
    """Lock a folder until the handle that is returned is closed, or the process ends.

    None if another handle has it locked, or where this system or disk locks no folders.
    """
    try:
        fcntl: Any = import_module("fcntl")
        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        return None
    return handle


@contextmanager
def turn(path: Path, wait: bool = True) -> Iterator[bool]:
    """A context for one thread of one process at a time: is it this one's turn? The file `path` exists meanwhile.

    Without `wait`, it may be another's turn. On a disk without locks it is everybody's.
    """
    mine = refused = False
    try:
        while True:
            with open(path, "ab") as file:
                try:
                    mine = _lock_if_possible(file, wait)
                    if mine and not _is_open_as(path, file):
                        mine = False
                        continue  # the one before has removed it
                    yield mine
                    return
                except BaseException:
                    mine = mine or _lock_if_possible(file)  # an interrupt while the file was locked
                    raise
                finally:
                    if mine:
                        refused = not _unlink(path)
    finally:
        if refused:  # Windows removes no open file: this one, or that of the next one
            _unlink(path)


def _lock_if_possible(file: IO[bytes], wait: bool = False) -> bool:
    """Lock a file; True on a disk without locks."""
    try:
        return lock(file, wait)
    except OSError:
        return True


def _unlink(path: Path) -> bool:
    """Remove a file; False if it is open, on Windows."""
    try:
        path.unlink(missing_ok=True)
    except PermissionError:
        return False
    return True


def _is_open_as(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def allocate(file: IO[bytes], size: int) -> None:
    """Give a new file `size` zero bytes. A full disk raises an error here, not in a kernel that writes to a mapping."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # the file system cannot
                raise
    for start in range(0, size, len(_ZEROS)):
        file.write(_ZEROS[: size - start])
    file.flush()


def bypass_cache(file: IO[bytes], bypass: bool) -> None:
    """Set whether reads and writes of a file bypass the system's page cache, where the system and the disk can."""
    with suppress(ImportError, AttributeError, OSError):
        fcntl: Any = import_module("fcntl")
        direct: int = getattr(os, "O_DIRECT")  # noqa: B009  not all systems have it
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        fcntl.fcntl(file, fcntl.F_SETFL, flags | direct if bypass else flags & ~direct)


def punch_hole(file: IO[bytes], at: int, size: int) -> None:
    """Free the disk of a part of a file, whose bytes become zeros, where the system and the disk can: on Linux."""
    with suppress(AttributeError, OSError, TypeError):
        fallocate = ctypes.CDLL(None).fallocate
        fallocate(file.fileno(), _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(at), ctypes.c_int64(size))


def write_at(file: IO[bytes], data: memoryview, at: int) -> int:
    """Write to an offset of an unbuffered file; return the number of bytes written. Threads may share the file."""
    if hasattr(os, "pwritev"):
        return int(os.pwritev(file.fileno(), [data], at))
    with _SEEKING:
        os.lseek(file.fileno(), at, os.SEEK_SET)
        return os.write(file.fileno(), data)


def read_at(file: IO[bytes], into: memoryview, at: int) -> int:
    """Read from an offset of an unbuffered file; return the number of bytes read. Threads may share the file."""
    if hasattr(os, "preadv"):
        return int(os.preadv(file.fileno(), [into], at))
    with _SEEKING:
        os.lseek(file.fileno(), at, os.SEEK_SET)
        data = os.read(file.fileno(), len(into))
    into[: len(data)] = data
    return len(data)


# ---------------------------------------------------------------------------------------------
# memory


def map_memory(size: int) -> mmap.mmap:
    """Zeroed memory of this process from a memory page on, in huge pages where the system has them."""
    how: dict[str, Any] = {}
    if hasattr(mmap, "MAP_PRIVATE"):
        how = {"flags": mmap.MAP_PRIVATE | getattr(mmap, "MAP_ANON", 0)}
    mapping = mmap.mmap(-1, size, **how)
    use_huge_pages(mapping)
    return mapping


def use_huge_pages(mapping: mmap.mmap) -> None:
    """Ask for huge pages, where the system has them."""
    if hasattr(mmap, "MADV_HUGEPAGE") and hasattr(mapping, "madvise"):
        with suppress(OSError):  # a Linux kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)


def populate(mapping: mmap.mmap) -> None:
    """Load the memory pages of a mapped file, where the system can."""
    if hasattr(mmap, "MADV_HUGEPAGE") and hasattr(mapping, "madvise"):  # a name that only Linux has
        with suppress(OSError):  # Linux before 5.14
            mapping.madvise(_MADV_POPULATE_READ)


def machine_bytes() -> int:
    """The memory of the machine; 0 if unknown."""
    try:
        return int(os.sysconf("SC_PHYS_PAGES")) * mmap.PAGESIZE if hasattr(os, "sysconf") else 0
    except (OSError, ValueError):
        return 0


def resident_bytes() -> int:
    """Resident memory without mapped files, whose pages the system can take back; 0 if unknown: outside Linux."""
    try:
        _, resident, mapped, *_ = Path("/proc/self/statm").read_bytes().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(mapped)) * mmap.PAGESIZE


def peak_bytes() -> int:
    """The most resident memory that this process has had, mapped files included; 0 if unknown: on Windows."""
    try:
        resource: Any = import_module("resource")
    except ImportError:
        return 0
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def release_free_memory() -> None:
    """Return freed memory to the system: the C library keeps freed arrays of less than 32 MB."""
    with suppress(AttributeError, OSError, TypeError):  # only the GNU C library has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


# ---------------------------------------------------------------------------------------------
# the process and the machine


def default_threads() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def user_id() -> int:
    """The number of the user who runs this process; 0 on Windows, where files have no such number."""
    return os.getuid() if hasattr(os, "getuid") else 0


def has_cuda_driver() -> bool:
    """Whether the driver of an NVIDIA GPU is installed."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        with suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


def send_again(number: int) -> None:
    """Send a signal to this process, for its main thread."""
    if hasattr(signal, "pthread_kill"):
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, number)
    else:
        signal.raise_signal(number)  # on Windows os.kill ends the process
