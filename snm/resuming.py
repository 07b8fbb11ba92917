"""Resuming: what a training keeps so that it can go on after it was killed (`--resume`).

Finished stages are kept in a folder beside the model, or in that of --work. It has the files of tasks that count
(`snm.cluster.work`) and, for each other stage that is worth it, its arrays and then a description with their checksums.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from snm.arguments import shown
from snm.cluster.work import kept_place
from snm.errors import SettingsError
from snm.progress import Notify
from snm.remote import Folder, is_url, size_at
from snm.settings import Settings
from snm.storage import ModelWriter, turn
from snm.text.files import STDIN, Sources, are_files, find_files
from snm.version import __version__

TRAINING, COMPLETE = "training.json", "complete"
CHECKED_BYTES = 64 << 20  # at a time

Stage = tuple[dict[str, Any], dict[str, np.ndarray]]
"""The figures and the arrays of a finished stage."""


class Kept:
    """The finished stages of a training. Without a folder, none are kept."""

    def __init__(self, folder: Folder | None = None) -> None:
        self.folder = folder

    def load(self, stage: str) -> Stage | None:
        """A finished stage; None if it is not finished, or if its files are damaged."""
        if self.folder is None:
            return None
        try:
            found = json.loads(self.folder.read(f"{stage}.json"))
            arrays = {name: self.folder.map(f"{stage}-{name}", dtype) for name, (dtype, _) in found["arrays"].items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        whole = all(_checksum(arrays[name]) == checksum for name, (_, checksum) in found["arrays"].items())
        return (found["figures"], arrays) if whole else None

    def save(self, stage: str, figures: dict[str, Any], **arrays: np.ndarray) -> None:
        """Keep a stage that has ended."""
        if self.folder is None:
            return
        for name, array in arrays.items():
            self.folder.write(f"{stage}-{name}", array)
        described = {name: (array.dtype.str, _checksum(array)) for name, array in arrays.items()}
        self.folder.write(f"{stage}.json", json.dumps({"figures": figures, "arrays": described}).encode())


def _checksum(array: np.ndarray) -> int:
    data, checksum = array.reshape(-1).view(np.uint8), 0
    for start in range(0, len(data), CHECKED_BYTES):
        checksum = zlib.crc32(data[start : start + CHECKED_BYTES].data, checksum)
    return checksum


@contextmanager
def keeping(
    settings: Settings, sources: Sources | None, dev: Sources | None, writer: ModelWriter, notify: Notify
) -> Iterator[Kept]:
    """What a training with these settings keeps, and has kept before; removed when the model is complete."""
    if not settings.resume:
        yield Kept()
        return
    folder = Folder(kept_place(settings.work, writer.path, settings.engine))
    described = {
        "version": __version__,
        **_plain(settings),
        "text": _files("the text", sources),
        "dev": _files("the held-out text", dev),
        "vocab": _files("the vocabulary", settings.vocab),
    }
    with ExitStack() as resources:
        if folder.is_local:
            folder.make()
            if not resources.enter_context(turn(Path(folder.where), wait=False)):
                raise SettingsError(f"{folder.where} is in use by another run; wait for it, or choose another name")
        _check_same(folder, described, notify)
        folder.make()
        folder.write(TRAINING, json.dumps(described, indent=1).encode())
        try:
            yield Kept(folder)
        except BaseException:
            notify(f"what is finished is kept in {folder.where}; the same command goes on from there")
            raise
        with suppress(OSError):  # a full disk
            folder.write(TRAINING, json.dumps(COMPLETE).encode())
        _remove(folder)


def _remove(folder: Folder) -> None:
    """Remove the work of a complete model, TRAINING last: it tells the next run that the rest is to be removed."""
    for name in folder.names():
        if name != TRAINING:
            folder.child(name).remove()
    folder.remove()


def _plain(settings: Settings) -> dict[str, Any]:
    """All settings of an SNM or a backoff model."""
    training, m = asdict(settings.training), settings.training.metafeatures
    buckets = {"feature_buckets": m.feature_buckets, "link_buckets": m.link_buckets, "merge": m.merge}
    others = {name: value for name, value in asdict(settings).items() if name not in ("training", "network", "vocab")}
    tokenizer = settings.text_tokenizer
    others["tokenizer"] = None if tokenizer is None else [tokenizer.kind, tokenizer.fingerprint]
    return {**others, **training, "metafeatures": str(m), **buckets}


def _files(what: str, sources: Sources | None) -> list[tuple[str, int, int]]:
    """The name, size and time of each file."""
    if sources is None:
        return []
    files = find_files(sources) if are_files(sources) else [STDIN]
    if STDIN in files:
        raise SettingsError(f"{what} is not in files; a training that can be resumed must find it there again")
    return [_file(name) for name in files]


def _file(name: str) -> tuple[str, int, int]:
    if is_url(name):
        return name, size_at(name), 0
    status = Path(name).stat()
    return str(Path(name).resolve()), status.st_size, status.st_mtime_ns


def _check_same(folder: Folder, described: dict[str, Any], notify: Notify) -> None:
    """Raise an error if a folder has the work of another training."""
    try:
        found = json.loads(folder.read(TRAINING))
    except FileNotFoundError:
        if any(not name.startswith(".") for name in folder.names()):  # what was being written is hidden
            raise SettingsError(
                f"{folder.where} exists and is not the work of a training; choose another name"
            ) from None
        return
    except ValueError:
        found = {}
    if found == COMPLETE:
        notify(f"removing {folder.where}, which a run left behind that was killed")
        _remove(folder)
        return
    described = json.loads(json.dumps(described))
    different = next((name for name in described if found.get(name) != described[name]), None)
    if different is not None:
        before, now = (shown(values.get(different)) for values in (found, described))
        raise SettingsError(
            f"{folder.where} has the work of another training: {different} was {before}, and is {now}; remove the "
            f"folder, or train without --resume"
        )
    notify(f"going on with the work in {folder.where}")
