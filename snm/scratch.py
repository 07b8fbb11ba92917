"""Temporary folders. The next one that is made in the same place clears away those of processes that were killed.

A folder is locked while its process lives. Where the system locks no folders, on Windows, none is cleared away.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from snm import system
from snm.progress import Notify, ignore
from snm.storage import remove_folder

PREFIX = ".snm-scratch-"
_NAME = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")


@contextmanager
def scratch_folder(notify: Notify = ignore, parent: Path | None = None) -> Iterator[Path]:
    """A folder in `parent`, by default in the system's temporary folder, that is removed in the end."""
    place = Path(tempfile.gettempdir() if parent is None else parent)
    _clear(place, notify)
    folder, handle = _make(place)
    try:
        yield folder
    finally:
        with suppress(FileNotFoundError):
            remove_folder(folder)
        if handle is not None:
            os.close(handle)


def _make(place: Path) -> tuple[Path, int | None]:
    """A new folder, and the handle that has it locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        handle = system.lock_folder(folder, wait=True)
        if handle is None or (folder.exists() and os.path.samestat(os.fstat(handle), folder.stat())):
            return folder, handle
        os.close(handle)  # another process took it for one of a process that was killed


def _clear(place: Path, notify: Notify) -> None:
    """Remove the folders of this user that no process has locked."""
    with suppress(OSError):
        for name in sorted(filter(_NAME.fullmatch, os.listdir(place))):
            folder = place / name
            if folder.is_symlink() or folder.stat().st_uid != system.user_id():
                continue
            handle = system.lock_folder(folder)
            if handle is not None:
                notify(f"removing {folder}, which a run left behind that was killed")
                shutil.rmtree(folder, ignore_errors=True)
                os.close(handle)
