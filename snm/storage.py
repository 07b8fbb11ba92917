"""Model folders: plain arrays, the vocabulary, and a manifest. docs/format.md specifies them.

A model is written to a hidden folder beside its final path, synced, and renamed last, so a folder with the final name
is always complete. The manifest is the last file written.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from snm import memory, parallel
from snm.errors import FormatError, ModelNotFound, SettingsError

FORMAT = "snm-model"
VERSION = 3
MANIFEST = "manifest.json"
VOCABULARY = "vocabulary.txt"
MADV_POPULATE_READ = 22  # of Linux; Python has no name for it
NPY_HEADER = 128  # bytes of the header of a one-dimensional .npy file
CHUNK_BYTES = 4 << 20  # written at a time
LARGE_CHUNK_BYTES = 32 << 20
"""The same for arrays with random look-ups. Linux caches large writes in huge pages and maps those: look-ups take up to
a quarter less time."""


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


class ModelWriter:
    """Writes a model folder. `path` does not exist, or stays as it was, until the model is complete."""

    def __init__(self, path: str | Path, force: bool = False) -> None:
        self.path, self.force = Path(os.path.realpath(path)), force
        if not str(path):
            raise SettingsError("the name of the output is empty; name a folder that does not exist yet")
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.force = True  # an empty folder
        elif self.path.exists() and not (self.path / MANIFEST).is_file():
            raise SettingsError(f"{path} exists and is not a model; choose another name")
        elif self.path.exists() and not force:
            raise SettingsError(
                f"{path} exists already; choose another name, or replace it with --force (in Python force=True)"
            )
        elif self.path.exists():
            _check_replaceable(self.path)
        self.folder = self._hidden_name()
        self._arrays: dict[str, ArrayWriter] = {}

    def _hidden_name(self) -> Path:
        return self.path.parent / f".{self.path.name}.{secrets.token_hex(4)}"

    def array(self, name: str, dtype: str, chunk_bytes: int = CHUNK_BYTES) -> ArrayWriter:
        """A new array of the model."""
        self._arrays[name] = ArrayWriter(self.folder / f"{name}.npy", dtype, chunk_bytes)
        return self._arrays[name]

    def append(self, name: str, block: np.ndarray) -> None:
        self._arrays[name].append(block)

    def scratch(self, shape: tuple[int, ...]) -> np.ndarray:
        """A zeroed uint32 array in a temporary file on disk."""
        with tempfile.TemporaryFile(dir=self.folder) as file:
            os.posix_fallocate(file.fileno(), 0, int(np.prod(shape)) * 4)  # a full disk raises here, not in a kernel
            return np.memmap(file, np.uint32, "r+", shape=shape)

    def spool(self, chunks: Iterable[np.ndarray]) -> np.ndarray:
        """Join chunks into one uint32 array in a temporary file on disk."""
        with tempfile.TemporaryFile(dir=self.folder) as file:
            for chunk in chunks:
                file.write(np.ascontiguousarray(chunk, np.uint32).data)
            file.flush()
            length = file.tell() // 4
            return np.asarray(np.memmap(file, np.uint32, "r+", shape=(length,))) if length else np.empty(0, np.uint32)

    def load(self, name: str) -> np.ndarray:
        """Map an array that has been written."""
        self._arrays[name].close()
        return open_array(self._arrays[name].path)

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Copy a part of an array that has been written: mapped pages would count as memory of this process."""
        array = self._arrays[name]
        array.close()
        return np.fromfile(array.path, array.dtype, stop - start, offset=NPY_HEADER + start * array.dtype.itemsize)

    def drop(self, name: str) -> None:
        """Delete an array that the finished model does not need."""
        self._arrays[name].close()
        self._arrays.pop(name).path.unlink()

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
            _sync(path)

        parallel.run(describe, files, threads)
        manifest = {"format": FORMAT, "version": VERSION, **manifest, "files": dict(sorted(entries.items()))}
        path = self.folder / MANIFEST
        path.write_text(json.dumps(manifest, indent=1) + "\n")
        _sync(path)
        self._rename()

    def _rename(self) -> None:
        _sync(self.folder)
        old = None
        if self.force and self.path.exists():
            if any(self.path.iterdir()):
                _check_replaceable(self.path)  # again: training took its time
            if _exchange(self.folder, self.path):
                _sync(self.path.parent)
                return  # the old model is in the hidden folder now, which `__exit__` removes
            old = self._hidden_name()
            os.rename(self.path, old)
        try:
            os.rename(self.folder, self.path)
        except OSError as error:
            if old is not None:
                os.rename(old, self.path)
            kept, self.folder = self.folder, Path()
            raise SettingsError(
                f"cannot rename to {self.path}: {error.strerror} (did another run write it?); the model is in {kept}"
            ) from error
        _sync(self.path.parent)
        if old is not None:
            shutil.rmtree(old)

    def __enter__(self) -> ModelWriter:
        try:
            self.folder.mkdir(parents=True)
        except OSError as error:
            raise SettingsError(f"cannot write to {self.path.parent}: {error.strerror}") from error
        except BaseException:  # an interrupt just after mkdir
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for array in self._arrays.values():
            with suppress(OSError):  # a full disk has raised its error already
                array.close()
        if self.folder.name and self.folder.exists():
            shutil.rmtree(self.folder)


def _check_replaceable(path: Path) -> None:
    """Raise an error if a folder is no model of ours, or has other files beside the model's."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        files = {MANIFEST, *manifest["files"]} if manifest["format"] == FORMAT else set()
    except (OSError, ValueError, KeyError, TypeError):
        files = set()
    if not files:
        raise SettingsError(
            f"{path} is not a model of snm, or a damaged one; remove it yourself, or choose another name"
        )
    for file in path.rglob("*"):
        if not file.is_dir() and file.relative_to(path).as_posix() not in files:
            raise SettingsError(f"{file} is not part of the model {path}; move it away, or choose another name")


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two folders in one step, where the system can: Linux, with most file systems."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replaced_file(name: str) -> Iterator[IO[str]]:
    """A text stream that takes the place of a file when it was written as a whole; `-` is standard output."""
    if name == "-":
        yield sys.stdout
        return
    path = Path(os.path.realpath(name))
    if path.exists() and not path.is_file():  # a pipe or a device is written as it is
        with open(path, "w", encoding="utf-8") as stream:
            yield stream
        return
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(scratch, "w", encoding="utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_array(path: Path) -> np.ndarray:
    """Map an array. Copy-on-write, because kernels are compiled for writable arrays."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="c" if path.stat().st_size > NPY_HEADER else None)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: not a readable array ({error}); rebuild the model") from error
    mapping = _mapping_of(array)
    if mapping is not None:
        memory.use_huge_pages(mapping)
    return np.asarray(array)


def prefault(arrays: Iterable[np.ndarray]) -> None:
    """Load the memory pages of mapped arrays before they are read, unless they take more than half the memory.

    Page faults one by one take five times as long, and read from disk in random order.
    """
    mappings = [mapping for array in arrays if (mapping := _mapping_of(array)) is not None]
    if sys.platform != "linux" or 2 * sum(map(len, mappings)) > os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE:
        return
    for mapping in mappings:
        with suppress(OSError):  # Linux before 5.14
            mapping.madvise(MADV_POPULATE_READ)


def _mapping_of(array: np.ndarray) -> mmap.mmap | None:
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None


def version_of(path: Path) -> tuple[int, ...] | None:
    """What identifies a written version of a model; None where there is no model."""
    try:
        found = (path / MANIFEST).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a model folder; validate the format and the sizes of all files."""
    path = Path(path)
    if not path.exists():
        raise ModelNotFound(f"{path}: no such model")
    file = path / MANIFEST
    if not file.is_file():
        raise FormatError(f"{path} is not a model: expected a folder with {MANIFEST}, as written by snm train")
    try:
        manifest: dict[str, Any] = json.loads(file.read_text())
        found = manifest["format"], manifest["version"]
        files = {name: int(entry["bytes"]) for name, entry in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise FormatError(
            f"{file} is damaged ({type(error).__name__}: {error}); restore or rebuild the model"
        ) from error
    if found != (FORMAT, VERSION):
        raise FormatError(
            f"{path} has format {found[0]} version {found[1]}; this program reads {FORMAT} version {VERSION}; "
            f"rebuild the model with this version of snm, or read it with the one that wrote it"
        )
    for name, expected in files.items():
        size = (path / name).stat().st_size if (path / name).is_file() else None
        if size != expected:
            state = "is missing" if size is None else f"has {size} bytes"
            raise FormatError(f"{path / name} {state}; expected {expected} bytes; restore or rebuild the model")
    return manifest


def check_files(path: Path) -> None:
    """Raise an error if a file's checksum differs from the manifest's."""
    for name, entry in read_manifest(path)["files"].items():
        if file_sha256(path / name) != entry.get("sha256"):
            raise FormatError(f"{path / name}: its checksum differs from the manifest's; restore or rebuild the model")
