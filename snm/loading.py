"""Opening a model folder of any kind. The module of a kind is imported when a model of that kind is opened."""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from pathlib import Path

from snm import manifest, storage
from snm.arguments import file_path, functions, shown
from snm.errors import FormatError
from snm.model import LanguageModel
from snm.progress import Progress, silent
from snm.remote import Folder, download_model, is_url
from snm.scratch import scratch_folder

_KINDS = {
    "snm": "snm.scoring.model:SnmModel",
    "backoff": "snm.baselines.backoff.model:BackoffModel",
    "hsme": "snm.baselines.neural.hsme:HsmeModel",
    "rnn": "snm.baselines.neural.rnn:RnnModel",
    "mixture": "snm.scoring.mixture:MixtureModel",
    "sources": "snm.scoring.sources:SourcesModel",
    "hybrid": "snm.scoring.hybrid:HybridModel",
}


TRIES = 20  # to open a model that is being replaced
MAX_DEPTH = 16  # of mixtures of mixtures
MAX_MEMBERS = 128  # each takes memory in proportion to the words of all
LONGEST_NAME = 255  # bytes, of a folder, on most systems


def load(path: str | Path, *, progress: Progress = silent) -> LanguageModel:
    """Open a model folder. Arrays are mapped, not read, so this takes milliseconds whatever their size.

    A URL, such as s3://bucket/model, is copied to the system's temporary folder (TMPDIR) first, each time.

    If the model is replaced meanwhile, its files may be of two versions: then the new one is opened.

    An ARPA file, plain or compressed, is opened too. It is converted each time, in the system's temporary folder
    (TMPDIR), which takes seconds to minutes for a large one and is shown by `progress`; `import_arpa` does it once.
    """
    functions(progress=progress)
    if is_url(path):
        return _load_url(str(path))
    path = file_path("path", path)
    if is_arpa(path):
        from snm.baselines.backoff.arpa import ArpaModel

        return ArpaModel(path, progress=progress)
    for _ in range(TRIES):
        version = storage.version_of(Path(path))
        try:
            model = _open(path)
        except Exception:  # of a model of another kind, between two reads of the manifest, any
            if storage.version_of(Path(path)) == version and not storage.wait_for_turn(path):
                raise
            continue
        if storage.version_of(Path(path)) == version:
            return model
    raise FormatError(f"{path} is replaced again and again; try later")


def _load_url(url: str) -> LanguageModel:
    """Open a copy of a model in the system's temporary folder, which is removed at once: its files are mapped."""
    with scratch_folder() as folder:
        download_model(Folder(url), folder / "model")
        model = _open(folder / "model")
    model.path = Path(url)
    return model


def is_arpa(path: Path) -> bool:
    """Whether a model is an ARPA file: anything that exists and is no folder."""
    return os.path.exists(path) and not os.path.isdir(path)


def _open(path: str | Path, depth: int = 0) -> LanguageModel:
    described = manifest.read(Path(path))
    module, _, name = _KINDS[described["kind"]].partition(":")
    model_class = getattr(import_module(module), name)
    if described["kind"] in ("mixture", "sources", "hybrid"):
        members: list[str] = described["members"]
        distinct = len(set(members)) == len(members) <= MAX_MEMBERS
        for folder in members:
            plain = folder not in ("", ".", "..") and Path(folder).name == folder and folder.isprintable()
            plain = plain and len(folder.encode()) <= LONGEST_NAME
            if not plain or not distinct or (Path(path) / folder).is_symlink() or depth == MAX_DEPTH:
                raise FormatError(
                    f"{path} is damaged: a member is {shown(folder)}; expected up to {MAX_MEMBERS} folders of the "
                    f"model, each once, no links, at most {MAX_DEPTH} one inside of another"
                )
        model_class = partial(model_class, members=[_open(Path(path) / folder, depth + 1) for folder in members])
    model: LanguageModel = model_class(path)
    return model
