"""Folders of models and of counts: plain arrays, the vocabulary, and a manifest. docs/format.md specifies them.

A folder is written to a hidden folder beside its final path, synced, and renamed last, so a folder with the final name
is always complete. The manifest is the last file written.
"""

from __future__ import annotations

import atexit
import errno
import gc
import hashlib
import json
import mmap
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from snm import parallel, system
from snm.arguments import file_path, flag, shown
from snm.errors import FormatError, ModelNotFound, SettingsError
from snm.progress import Notify, ignore

FORMAT = "snm-model"
VERSION = 3
MANIFEST = "manifest.json"
VOCABULARY = "vocabulary.txt"
CHECKSUM = "checksum"  # the entry of a manifest with the manifest's own
MAX_MANIFEST = 8 << 20  # bytes: JSON takes many times its size in memory
MAX_NAME = 1024  # characters of a file's name, with the folders of members
NPY_HEADER = 128  # bytes of the header of a one-dimensional .npy file
CHUNK_BYTES = 4 << 20  # written at a time
FREED_BYTES = 4096  # disk is freed in multiples of these
MOVED_BYTES = 256 << 20  # between memory and a temporary file at a time, at most
LARGE_CHUNK_BYTES = 32 << 20
"""The same for arrays with random look-ups. Linux caches large writes in huge pages and maps those: look-ups take up to
a quarter less time."""


class FolderKind(NamedTuple):
    """What a folder with a manifest holds, for its manifest and for messages."""

    format: str
    version: int
    what: str
    written_by: str
    remedy: str


MODEL = FolderKind(FORMAT, VERSION, "model", "snm train", "restore or rebuild the model")
COUNTS = FolderKind("snm-counted-text", 1, "folder of counts", "snm count or snm merge", "restore it, or count again")


class ArrayWriter:
    """A one-dimensional .npy file that is written block by block."""

    def __init__(self, path: Path, dtype: str, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Every write to the file is one chunk: `chunk_bytes` from a multiple of `chunk_bytes` on."""
        self.path, self.dtype, self.length, self._chunk_bytes = path, np.dtype(dtype), 0, chunk_bytes
        self._file: IO[bytes] = open(path, "wb", buffering=chunk_bytes)  # noqa: SIM115
        self._write_header()

    def _write_header(self) -> None:
        # NumPy pads the header, so the length can grow in place
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (self.length,)}
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, block: np.ndarray) -> None:
        left = memoryview(np.ascontiguousarray(block, self.dtype).view(np.uint8))  # type: ignore[arg-type]
        while left:
            size = self._chunk_bytes - self._file.tell() % self._chunk_bytes
            self._file.write(left[:size])
            left = left[size:]
        self.length += len(block)

    def close(self) -> None:
        if not self._file.closed:
            with self._file:
                self._write_header()


def write_fully(file: IO[bytes], array: np.ndarray, at: int) -> None:
    """Write an array to an offset of an unbuffered file. Threads may share the file."""
    _move(system.write_at, file, array, at)


def read_fully(file: IO[bytes], array: np.ndarray, at: int) -> None:
    """Fill an array from an offset of an unbuffered file. Not mapped: pages would count as memory of this process."""
    _move(system.read_at, file, array, at)


def _move(move: Callable[[IO[bytes], memoryview, int], int], file: IO[bytes], array: np.ndarray, at: int) -> None:
    data, done = array.view(np.uint8).data, 0
    while done < len(data):
        moved = move(file, data[done : done + MOVED_BYTES], at + done)
        if not moved:
            raise OSError(errno.EIO, "a temporary file ends too early")
        done += moved


class ModelWriter:
    """Writes a folder. `path` does not exist, or stays as it was, until the folder is complete."""

    def __init__(
        self, path: str | Path, force: bool = False, notify: Notify = ignore, kind: FolderKind = MODEL
    ) -> None:
        """`notify` is told what runs that were killed have left behind."""
        self.kind = kind
        if str(path) == "-":
            raise SettingsError(f"a {kind.what} cannot be written to standard output (-); name a folder")
        self.path, self.force = Path(os.path.realpath(file_path("output", path))), flag("force", force)
        self.notify = notify
        self.folder, self._resources = Path(), ExitStack()
        self._arrays: dict[str, ArrayWriter] = {}
        self._check_output()

    def _check_output(self) -> None:
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.force = True  # an empty folder
        elif self.path.exists() and not (self.path / MANIFEST).is_file():
            raise SettingsError(f"{self.path} exists and is not a {self.kind.what}; choose another name")
        elif self.path.exists() and not self.force:
            raise SettingsError(
                f"{self.path} exists already; choose another name, or replace it with --force (in Python force=True)"
            )
        elif self.path.exists():
            _check_replaceable(self.path, self.kind)

    def at_end(self, call: Callable[[], object]) -> None:
        """Have a function called when writing has ended, whether the model is complete or not."""
        self._resources.callback(call)

    def array(self, name: str, dtype: str, chunk_bytes: int = CHUNK_BYTES) -> ArrayWriter:
        """A new array of the model."""
        self._arrays[name] = ArrayWriter(self.folder / f"{name}.npy", dtype, chunk_bytes)
        return self._arrays[name]

    def append(self, name: str, block: np.ndarray) -> None:
        self._arrays[name].append(block)

    def scratch(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.uint32) -> np.ndarray:
        """A zeroed array in a temporary file on disk, mapped."""
        with self._temporary_file() as file:
            system.allocate(file, max(1, int(np.prod(shape))) * np.dtype(dtype).itemsize)
            return np.asarray(np.memmap(file, dtype, "r+", shape=shape))

    def temporary_file(self) -> IO[bytes]:
        """An unbuffered file without a name, beside the folder, which the system deletes with the process."""
        return tempfile.TemporaryFile(dir=self.folder.parent, buffering=0)

    def spool(self, chunks: Iterable[np.ndarray]) -> np.ndarray:
        """Join chunks into one uint32 array in a temporary file on disk."""
        with self._temporary_file() as file:
            for chunk in chunks:
                file.write(np.ascontiguousarray(chunk, np.uint32).data)
            file.flush()
            length = file.tell() // 4
            return np.asarray(np.memmap(file, np.uint32, "r+", shape=(length,))) if length else np.empty(0, np.uint32)

    def _temporary_file(self) -> IO[bytes]:
        """A file beside the folder: Windows neither renames nor removes a folder with a file that is mapped."""
        return tempfile.TemporaryFile(dir=self.folder.parent)

    def load(self, name: str, *types: str) -> np.ndarray:
        """Map an array that has been written."""
        self._arrays[name].close()
        return open_array(self._arrays[name].path, *types)

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Copy a part of an array that has been written: mapped pages would count as memory of this process."""
        array = self._arrays[name]
        array.close()
        return np.fromfile(array.path, array.dtype, stop - start, offset=NPY_HEADER + start * array.dtype.itemsize)

    def free(self, name: str, stop: int) -> None:
        """Free the disk of the first `stop` entries of an array, where the system can. They are read no more."""
        array = self._arrays[name]
        with open(array.path, "r+b") as file:
            system.punch_hole(file, 0, (NPY_HEADER + stop * array.dtype.itemsize) // FREED_BYTES * FREED_BYTES)

    def rename(self, name: str, new: str) -> None:
        """Give an array that has been written, and is not mapped, another name."""
        array = self._arrays.pop(name)
        array.close()
        os.rename(array.path, array.path.with_name(f"{new}.npy"))
        array.path = array.path.with_name(f"{new}.npy")
        self._arrays[new] = array

    def drop(self, name: str) -> None:
        """Delete an array that the finished model does not need."""
        self._arrays[name].close()
        path = self._arrays.pop(name).path
        _released(path.unlink)

    def close(self) -> None:
        for array in self._arrays.values():
            array.close()

    def finish(self, manifest: dict[str, Any], threads: int = 1) -> None:
        """Write the manifest, sync all files, and rename the folder."""
        self.close()
        files = sorted(p for p in self.folder.rglob("*") if p.is_file())
        entries: dict[str, Any] = {}

        def describe(path: Path) -> None:
            entries[path.relative_to(self.folder).as_posix()] = {
                "bytes": path.stat().st_size,
                "sha256": file_sha256(path),
            }
            system.sync(path)

        parallel.run(describe, files, threads)
        kind = {"format": self.kind.format, "version": self.kind.version}
        manifest = {**kind, **manifest, "files": dict(sorted(entries.items()))}
        half = self.folder / f"{MANIFEST}.half"  # a folder with a manifest is whole
        half.write_bytes(sealed(manifest))
        system.sync(half)
        os.rename(half, self.folder / MANIFEST)
        self._rename()

    def _rename(self) -> None:
        """Give the folder its name. Then `folder` is an old model that was there, if any, which `__exit__` removes."""
        system.sync(self.folder)
        try:
            with turn(self.path):  # other runs may be writing to the same path
                self._swap()
        except (OSError, SettingsError) as error:
            kept = self.path.with_name(self.folder.name.removeprefix("."))  # as no leftover is named
            with suppress(OSError):
                os.rename(self.folder, kept)
            kept, self.folder = kept if kept.exists() else self.folder, Path()
            why = error.strerror if isinstance(error, OSError) else error
            raise SettingsError(
                f"cannot rename to {self.path}: {why} (did another run write it, or does a program have it open?); "
                f"the {self.kind.what} is in {kept}"
            ) from error
        system.sync(self.path.parent)

    def _swap(self) -> None:
        old = _old(self.folder)
        try:
            if self.force and self.path.exists():
                if any(self.path.iterdir()):
                    _check_replaceable(self.path, self.kind)  # again: training took its time
                if system.exchange(self.folder, self.path):
                    return
                _released(lambda: os.rename(self.path, old))
            _released(lambda: os.rename(self.folder, self.path))
        finally:
            if old.exists() and self.path.exists():
                self.folder = old
            elif old.exists():
                os.rename(old, self.path)

    def __enter__(self) -> ModelWriter:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.folder = self._resources.enter_context(hidden_place(self.path, self.notify))
            self._check_output()  # again: a model of a killed run may be there now
            self.folder.mkdir()
        except OSError as error:
            self.__exit__(None, None, None)
            raise SettingsError(f"cannot write to {self.path.parent}: {error.strerror}") from error
        except BaseException:  # such as an interrupt just after mkdir
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for array in self._arrays.values():
            with suppress(OSError):  # a full disk has raised its error already
                array.close()
        if self.folder.name and self.folder.exists():
            try:
                shutil.rmtree(self.folder)
            except PermissionError:  # Windows removes no mapped file; the functions that failed still refer to arrays
                traceback.clear_frames(trace)
                gc.collect()
                shutil.rmtree(self.folder, ignore_errors=error is not None)
        self._resources.close()


def turn(path: Path, wait: bool = True) -> AbstractContextManager[bool]:
    """A context for one writer of `path` at a time, of all threads and processes; see `system.turn`."""
    return system.turn(path.with_name(f".{path.name}.lock"), wait)


def wait_for_turn(path: Path) -> bool:
    """Wait if a writer is replacing `path`: where folders cannot be exchanged, there is none between two renames."""
    path = Path(os.path.realpath(path))
    if path.exists() or not path.with_name(f".{path.name}.lock").exists():
        return False
    with suppress(OSError), turn(path):
        return True
    return False


@contextmanager
def hidden_place(path: Path, notify: Notify) -> Iterator[Path]:
    """A hidden name beside `path`, for what is to be renamed to it. A locked file marks it as in use.

    If the process is killed, the mark remains and nobody has it locked. The next writer of `path` then removes both.
    """
    with ExitStack() as resources:
        try:
            with turn(path):
                _clear_leftovers(path, notify)
                place = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
                resources.callback(_remove, _mark(place))
                mark = resources.enter_context(open(_mark(place), "wb"))
                with suppress(OSError):  # a disk without locks
                    system.lock(mark)
        except OSError as error:
            raise SettingsError(f"cannot write to {path.parent}: {error.strerror}") from error
        yield place


def _mark(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


def _old(place: Path) -> Path:
    """Where the old model is while the new one takes its name, if the system cannot exchange them."""
    return place.with_name(f"{place.name}.old")


def _clear_leftovers(path: Path, notify: Notify) -> None:
    """Remove what killed runs have left beside `path`. If that is the only model, it takes its name."""
    pattern = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{8}\.lock")
    for mark in sorted(file for file in path.parent.iterdir() if pattern.fullmatch(file.name)):
        place = mark.with_name(mark.name.removesuffix(".lock"))
        if not _is_dead(mark):
            continue
        whole = [folder for folder in (place, _old(place)) if (folder / MANIFEST).is_file()]
        if whole and not path.exists():
            os.rename(whole[0], path)
            notify(f"{path} is complete now: the run that wrote it was killed before it could rename it")
        elif place.exists():
            notify(f"removing {place}, which a run left behind that was killed")
        for leftover in (place, _old(place), mark):
            _remove(leftover)


def _is_dead(mark: Path) -> bool:
    """Whether the run that made a mark is no longer there."""
    try:
        with open(mark, "r+b") as file:
            return system.lock(file)
    except OSError:  # another user's, or a disk without locks
        return False


def _remove(path: Path) -> None:
    """Remove a file or a folder, as far as possible."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder now, or when the program ends: Windows removes no file that is mapped."""
    try:
        shutil.rmtree(folder)
    except PermissionError:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _released(call: Callable[[], object]) -> None:
    """Call what Windows refuses while a file is mapped: if it does, again after unused arrays are collected."""
    try:
        call()
    except PermissionError:
        gc.collect()
        call()


def _check_replaceable(path: Path, kind: FolderKind) -> None:
    """Raise an error if a folder is not of this kind and ours, or has other files beside its own."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = {MANIFEST, *manifest["files"]} if manifest["format"] == kind.format else set()
    except (OSError, ValueError, KeyError, TypeError):
        files = set()
    if not files:
        raise SettingsError(
            f"{path} is not a {kind.what} of snm, or a damaged one; remove it yourself, or choose another name"
        )
    for file in path.rglob("*"):
        if not file.is_dir() and file.relative_to(path).as_posix() not in files:
            raise SettingsError(f"{file} is not part of the {kind.what} {path}; move it away, or choose another name")


@contextmanager
def replaced_file(name: str, notify: Notify = ignore) -> Iterator[IO[str]]:
    """A text stream that takes the place of a file when it was written as a whole; `-` is standard output."""
    if name == "-":
        yield sys.stdout
        return
    path = Path(os.path.realpath(name))
    if path.is_dir() or not path.parent.is_dir():
        wrong = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise SettingsError(f"cannot write the file {name}: {wrong}; choose another name")
    if path.exists() and not path.is_file():  # a pipe or a device is written as it is
        with open(path, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
        return
    with hidden_place(path, notify) as scratch:
        try:
            with open(scratch, "w", encoding="utf-8", newline="\n") as stream:
                yield stream
            system.sync(scratch)
            try:
                os.replace(scratch, path)
            except PermissionError as error:
                raise SettingsError(
                    f"cannot replace {name}: {error.strerror}; close the programs that have it open, or choose another "
                    f"name"
                ) from error
            system.sync(path.parent)
        finally:
            scratch.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def link_files(source: Path, target: Path, without: Sequence[str] = (), files: dict[str, Any] | None = None) -> None:
    """Link the files of a model, except some, into the folder `target`; copy them where the disk has no links.

    `files`: those of its manifest, if the model was opened before.
    """
    files = read_manifest(source)["files"] if files is None else files
    for name in (MANIFEST, *files):
        if name in without:
            continue
        linked = target / name
        linked.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            link_file(source / name, linked)
    check_unchanged(source, files)


def check_unchanged(path: Path, files: dict[str, Any]) -> None:
    """Raise an error if a model has other files now than when its manifest was read: some that were linked are new."""
    if read_manifest(path)["files"] != files:
        raise FormatError(f"{path} was replaced by another model while it was used; run the command again")


def link_file(source: Path, target: Path) -> None:
    """Give a file another name; copy it where the disk has no links."""
    file = os.path.realpath(source)
    try:
        os.link(file, target)
    except OSError:
        shutil.copy2(file, target)


@contextmanager
def plain_file(path: Path) -> Iterator[IO[bytes]]:
    """A file of a model, open to read. A pipe or a device, which may have no end, is an error."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a name with a NUL
        raise FormatError(f"cannot read {shown(path)}: {error}") from error


def read_file(path: Path, most: int | None = None) -> bytes:
    """The bytes of a file of a model; an error if there are more than `most`, or than the machine has memory."""
    most = (system.machine_bytes() or sys.maxsize) if most is None else most
    with plain_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise FormatError(f"{path} is damaged: it has {size:,} bytes; expected up to {most:,}")
        return file.read()


_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00v\x00\{'descr': '([<|][a-z]\d)', 'fortran_order': False, 'shape': \((\d{1,18}),\), \} *\n"
)
"""Of a one-dimensional array: all that a model has. NumPy parses headers as Python, which can fail in many ways."""


def open_array(path: Path, *types: str) -> np.ndarray:
    """Map a one-dimensional array of one of these dtypes. Copy-on-write: kernels are compiled for writable arrays."""
    expected = f"expected one dimension{types and ' of '}{' or '.join(types)}; restore or rebuild the model"
    with plain_file(path) as file:
        header, size = file.read(NPY_HEADER), os.fstat(file.fileno()).st_size
        found = _HEADER.fullmatch(header)
        if found is None or len(header) < NPY_HEADER:
            raise FormatError(f"{path}: not a readable array; {expected}")
        name, length = found[1].decode(), int(found[2])
        if types and name not in types:
            raise FormatError(f"{path} is an array of {name}; {expected}")
        try:
            dtype = np.dtype(name)
        except TypeError:
            raise FormatError(f"{path} is an array of {name}; {expected}") from None
        if size != NPY_HEADER + length * dtype.itemsize:
            raise FormatError(
                f"{path} has {size:,} bytes; its header tells of {length:,} numbers of {name}; {expected}"
            )
        if not length:  # nothing cannot be mapped
            return np.empty(0, dtype)
        mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    system.use_huge_pages(mapping)
    return np.frombuffer(mapping, dtype, length, NPY_HEADER)


def read_array(path: Path, dtype: np.dtype[Any] | None = None) -> np.ndarray:
    """Read an array of any shape; with `dtype`, one dimension of it. `np.load` would also open zip files."""
    with plain_file(path) as file, warnings.catch_warnings(action="ignore"):
        try:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        except Exception as error:  # NumPy parses the header as Python, which can fail in many ways
            raise FormatError(f"{path}: not a readable array ({shown(error)})") from error
    if dtype is not None and (array.dtype != dtype or array.ndim != 1):
        raise FormatError(f"{path} is an array of {array.dtype} of shape {array.shape}; expected {dtype}")
    return array


def prefault(arrays: Iterable[np.ndarray]) -> None:
    """Load the memory pages of mapped arrays before they are read, unless they take more than half the memory.

    Page faults one by one take five times as long, and read from disk in random order.
    """
    mappings = [mapping for array in arrays if (mapping := _mapping_of(array)) is not None]
    if 2 * sum(map(len, mappings)) <= system.machine_bytes():
        for mapping in mappings:
            system.populate(mapping)


def _mapping_of(array: np.ndarray) -> mmap.mmap | None:
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    return owner if isinstance(owner, mmap.mmap) else None


def version_of(path: Path) -> tuple[int, ...] | None:
    """What identifies a written version of a model; None where there is no model."""
    try:
        found = (path / MANIFEST).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


_NO_DIGEST = b"0" * 64
_DIGEST = re.compile("[0-9a-f]{64}")


def sealed(manifest: dict[str, Any]) -> bytes:
    """The bytes of a manifest, with a checksum: the SHA-256 of these bytes with zeros in place of its 64 digits."""
    data = f"{json.dumps({**manifest, CHECKSUM: _NO_DIGEST.decode()}, indent=1)}\n".encode()
    return _resealed(data, _NO_DIGEST, hashlib.sha256(data).hexdigest().encode())


def _resealed(data: bytes, digest: bytes, other: bytes) -> bytes:
    """A manifest with another checksum in place of the last occurrence of this one."""
    before, _, after = data.rpartition(digest)
    return before + other + after


def _check_seal(file: Path, data: bytes, manifest: dict[str, Any], remedy: str) -> None:
    """Take the checksum out of a manifest, and raise an error if it is wrong. Those of older versions have none."""
    if CHECKSUM not in manifest:
        return
    digest = manifest.pop(CHECKSUM)
    plain = _resealed(data, digest.encode(), _NO_DIGEST) if _DIGEST.fullmatch(digest) else b""
    if hashlib.sha256(plain).hexdigest() != digest:
        raise FormatError(f"{file} is damaged: it differs from its checksum; {remedy}")


def read_manifest(path: Path, kind: FolderKind = MODEL) -> dict[str, Any]:
    """Read the manifest of a folder; validate its checksum, the format and the sizes of all files."""
    path = Path(path)
    if not path.exists():
        raise ModelNotFound(f"{path}: no such {kind.what}")
    file = path / MANIFEST
    if not file.is_file():
        raise FormatError(
            f"{path} is not a {kind.what}: expected a folder with {MANIFEST}, as written by {kind.written_by}"
        )
    data = read_file(file, MAX_MANIFEST)
    try:
        manifest: dict[str, Any] = json.loads(data.decode())
        if b"\\ud" in data.lower():  # half a character, which no terminal takes
            json.dumps(manifest, ensure_ascii=False).encode()
        found = manifest["format"], manifest["version"]
        _check_format(path, found, kind)
        _check_seal(file, data, manifest, kind.remedy)
        files = {name: int(entry["bytes"]) for name, entry in manifest["files"].items()}
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"{file} is damaged ({shown(error)}); {kind.remedy}") from error
    for name, expected in files.items():
        if not is_plain_name(name):
            raise FormatError(f"{file} is damaged: it lists the file {shown(name)}; expected files of its folder")
        size = _size_of(path / name)
        if size != expected:
            state = "is missing" if size is None else f"has {size} bytes"
            raise FormatError(f"{path / name} {state}; expected {expected} bytes; {kind.remedy}")
    return manifest


def _size_of(path: Path) -> int | None:
    """Bytes of a plain file; None where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def is_plain_name(name: str) -> bool:
    """Whether a manifest may list a file of this name: relative, of its folder, text on one line, and not long."""
    path = Path(name)
    return (
        len(name) <= MAX_NAME
        and name.isprintable()
        and not path.is_absolute()
        and ".." not in path.parts
        and bool(path.parts)
    )


def _check_format(path: Path, found: tuple[Any, Any], kind: FolderKind) -> None:
    if found == (kind.format, kind.version):
        return
    for other in (MODEL, COUNTS):
        if found[0] == other.format != kind.format:
            raise FormatError(f"{path} is a {other.what}; expected a {kind.what}, as written by {kind.written_by}")
    newer = found[0] == kind.format and isinstance(found[1], int) and found[1] > kind.version
    remedy = "a newer snm wrote it: upgrade snm, or rebuild it with this version"
    if not newer:
        remedy = "rebuild it with this version of snm, or read it with the one that wrote it"
    raise FormatError(
        f"{path} has format {shown(found[0])} version {shown(found[1])}; this program reads {kind.format} version "
        f"{kind.version}; {remedy}"
    )


def check_files(path: Path, kind: FolderKind = MODEL, threads: int = 1) -> None:
    """Raise an error if a file's checksum differs from the manifest's."""

    def check(named: tuple[str, dict[str, Any]]) -> None:
        name, entry = named
        if file_sha256(path / name) != entry.get("sha256"):
            raise FormatError(f"{path / name}: its checksum differs from the manifest's; {kind.remedy}")

    parallel.run(check, read_manifest(path, kind)["files"].items(), threads)
