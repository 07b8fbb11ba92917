"""Folders and files by URL, through fsspec: text to read, models to write, folders that several machines share.

A `Folder` is a folder of this machine, or of a network file system, or a URL such as s3://bucket/folder. Files are
written whole: under a temporary name that is then replaced, or, in an object store, by one upload.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from snm import system
from snm.arguments import shown
from snm.errors import FormatError, InputError, MissingExtra, ModelNotFound, SettingsError
from snm.storage import MANIFEST, MAX_MANIFEST, read_fully

COPIED_BYTES = 16 << 20  # at a time
FILE_NAME = re.compile(r"(\w[\w.-]*/){0,8}\w[\w.-]*", re.ASCII)
"""Names of a model's files: no hidden ones, none outside its folder."""


def is_url(name: object) -> bool:
    return isinstance(name, str) and "://" in name


def file_system(url: str) -> tuple[Any, str]:
    """What fsspec has for a URL: a file system, and the path in it."""
    if find_spec("fsspec") is None:
        raise MissingExtra("fsspec", "url", "a URL")
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:  # fsspec names the package that this protocol needs
        raise SettingsError(f"cannot use {url}: {error}") from error
    except ValueError as error:
        raise SettingsError(f"cannot use {url}: {error}; expected a URL such as s3://bucket/folder") from error
    return fs, path


def files_at(url: str) -> list[str]:
    """The files that a URL names: one, those below a folder that are not hidden, or those of a glob; sorted."""
    fs, path = file_system(url)
    try:
        if any(letter in path for letter in "*?["):
            found = [name for name in fs.glob(path) if fs.isfile(name)]
        elif fs.isfile(path):
            found = [path]
        else:
            found = [name for name in fs.find(path) if not _is_hidden(name[len(path) :])]
    except Exception as error:  # every store has errors of its own
        raise InputError(f"cannot read {url}: {error}") from error
    return sorted(fs.unstrip_protocol(name) for name in found)


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def open_url(url: str) -> io.BufferedReader:
    """Open a file by URL for reading."""
    fs, path = file_system(url)
    try:
        return io.BufferedReader(fs.open(path, "rb"), COPIED_BYTES)
    except Exception as error:
        raise InputError(f"cannot read {url}: {error}") from error


def size_at(url: str) -> int:
    fs, path = file_system(url)
    return int(fs.size(path) or 0)


def check_replaceable(folder: Folder, force: bool) -> None:
    """Raise an error if a model cannot be written to a folder by URL."""
    names = folder.names()
    if names and MANIFEST not in names:
        raise SettingsError(f"{folder.where} exists and is not a model; choose another name")
    if names and not force:
        raise SettingsError(
            f"{folder.where} exists already; choose another name, or replace it with --force (in Python force=True)"
        )


def upload_model(path: Path, folder: Folder) -> None:
    """Copy a model to a folder, the manifest last: without it, a folder is no model."""
    files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    old = set(folder.names())
    folder.delete(MANIFEST)
    try:
        folder.make()
        for name in (*(file for file in files if file != MANIFEST), MANIFEST):
            folder.upload(path / name, name)
    except BaseException:
        if not old:
            folder.remove()
        raise
    for name in old - set(files):
        folder.delete(name)


def download_model(folder: Folder, path: Path) -> None:
    """Copy a model to a folder of this machine."""
    try:
        manifest = folder.read(MANIFEST)
    except FileNotFoundError:
        raise ModelNotFound(f"{folder.where}: no such model") from None
    for name in listed_files(manifest, folder.where):
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.download(name, target)
    (path / MANIFEST).write_bytes(manifest)


def listed_files(manifest: bytes, where: str) -> dict[str, int]:
    """The files that a manifest lists, and their bytes. Names that a model's files cannot have raise an error."""
    if len(manifest) > MAX_MANIFEST:
        raise FormatError(f"{where}/{MANIFEST} is damaged: it has more than {MAX_MANIFEST:,} bytes")
    try:
        files = {str(name): int(entry["bytes"]) for name, entry in json.loads(manifest)["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"{where}/{MANIFEST} is damaged ({shown(error)}); restore the model") from error
    for name in files:
        if not FILE_NAME.fullmatch(name):
            raise FormatError(f"{where}/{MANIFEST} is damaged: it lists the file {shown(name)}")
    return files


class Folder:
    """A folder by path or URL."""

    def __init__(self, where: str | Path) -> None:
        self.where = str(where).rstrip("/") if is_url(where) else os.path.abspath(where)
        self._fs: Any
        self._fs, self._path = file_system(self.where) if is_url(where) else (None, self.where)

    @property
    def is_local(self) -> bool:
        """Whether its files can be opened and mapped by their path."""
        return self._fs is None

    def path(self, name: str) -> str:
        return f"{self._path}/{name}"

    def child(self, name: str) -> Folder:
        return Folder(f"{self.where}/{name}")

    def make(self) -> None:
        """Make the folder; an object store needs none."""
        if self._fs is None:
            os.makedirs(self._path, exist_ok=True)
        else:
            with suppress(NotImplementedError, OSError):
                self._fs.makedirs(self._path, exist_ok=True)

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        try:
            return os.stat(self.path(name)).st_size if self._fs is None else int(self._fs.size(self.path(name)))
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """The names of what is in the folder."""
        try:
            if self._fs is None:
                return sorted(os.listdir(self._path))
            return sorted(str(name).rsplit("/", 1)[-1] for name in self._fs.ls(self._path, detail=False))
        except FileNotFoundError:
            return []

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of a file; to its end where `stop` is None."""
        if self._fs is not None:
            if stop is not None and stop <= start:
                return b""
            data: bytes = self._fs.cat_file(self.path(name), start=start, end=stop)
            return data
        with open(self.path(name), "rb") as file:
            file.seek(start)
            return file.read(-1 if stop is None else stop - start)

    def read_array(self, name: str, dtype: npt.DTypeLike, start: int = 0, stop: int | None = None) -> np.ndarray:
        """The bytes [start, stop) of a file as an array that can be changed."""
        stop = (self.size(name) or 0) if stop is None else stop
        if self._fs is not None:
            return np.frombuffer(bytearray(self.read(name, start, stop)), dtype)
        array = np.empty(stop - start, np.uint8)
        with open(self.path(name), "rb", buffering=0) as file:
            read_fully(file, array, start)
        return array.view(dtype)

    def map(self, name: str, dtype: str) -> np.ndarray:
        """A file as an array: mapped, or first copied to a temporary file without a name."""
        if not self.size(name):
            return np.empty(0, dtype)
        if self._fs is None:
            return np.asarray(np.memmap(self.path(name), dtype, "c"))
        with tempfile.TemporaryFile() as file, self._fs.open(self.path(name), "rb") as source:
            shutil.copyfileobj(source, file, COPIED_BYTES)
            file.flush()
            return np.asarray(np.memmap(file, dtype, "c"))

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        """An unbuffered file to write, which gets its name at the end, if there is no error."""
        if self._fs is not None:
            with tempfile.TemporaryFile(buffering=0) as file:
                yield file
                file.seek(0)
                with self._fs.open(self.path(name), "wb") as target:
                    shutil.copyfileobj(file, target, COPIED_BYTES)
            return
        scratch = self.path(f".{name}.{secrets.token_hex(4)}")
        try:
            with open(scratch, "w+b", buffering=0) as file:
                yield file
            os.replace(scratch, self.path(name))
        finally:
            with suppress(OSError):
                os.unlink(scratch)

    def write(self, name: str, *data: bytes | np.ndarray) -> None:
        """Write a file of these bytes."""
        with self.create(name) as file:
            for block in data:
                write_all(file, block)

    def upload(self, path: Path, name: str) -> None:
        """Copy a file of this machine."""
        with open(path, "rb") as source, self.create(name) as target:
            shutil.copyfileobj(source, target, COPIED_BYTES)

    def download(self, name: str, path: Path) -> None:
        """Copy a file to this machine."""
        try:
            opened = open if self._fs is None else self._fs.open
            with opened(self.path(name), "rb") as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target, COPIED_BYTES)
        except FileNotFoundError:
            raise FormatError(f"{self.where}/{name} is missing; restore or rebuild the model") from None

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(self.path(name)) if self._fs is None else self._fs.rm_file(self.path(name))

    def remove(self) -> None:
        """Delete the folder and all that is in it, or a file."""
        if self._fs is None and os.path.isfile(self._path):
            os.remove(self._path)
        elif self._fs is None:
            shutil.rmtree(self._path, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                self._fs.rm(self._path, recursive=True)


def write_all(file: IO[bytes], data: bytes | np.ndarray) -> None:
    """Write all bytes to an unbuffered file."""
    left = memoryview(data).cast("B") if len(data) else memoryview(b"")  # type: ignore[arg-type]
    while left:
        left = left[file.write(left[:COPIED_BYTES]) :]


@contextmanager
def used_lock(token: str) -> Iterator[None]:
    """A locked file of this machine, which shows that the owner of a folder by URL is running."""
    path = lock_path(token)
    try:
        with open(path, "wb") as file:
            with suppress(OSError):  # a disk without locks
                system.lock(file)
            yield
    finally:
        with suppress(OSError):
            path.unlink()


def lock_path(token: str) -> Path:
    return Path(tempfile.gettempdir()) / f"snm-{token}.lock"


def is_in_use(token: str) -> bool:
    """Whether a process of this machine is in `used_lock`."""
    try:
        with open(lock_path(token), "r+b") as file:
            return not system.lock(file)
    except FileNotFoundError:
        return False
    except OSError:  # another user's, or a disk without locks
        return True
