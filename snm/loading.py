"""Opening a model folder of any kind. The module of a kind is imported when a model of that kind is opened."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path

from snm import storage
from snm.errors import FormatError
from snm.model import LanguageModel

_KINDS = {
    "snm": "snm.scoring.model:SnmModel",
    "backoff": "snm.baselines.backoff.model:BackoffModel",
    "hsme": "snm.baselines.neural.hsme:HsmeModel",
    "rnn": "snm.baselines.neural.rnn:RnnModel",
    "mixture": "snm.scoring.mixture:MixtureModel",
}


TRIES = 20  # to open a model that is being replaced


def load(path: str | Path) -> LanguageModel:
    """Open a model folder. Arrays are mapped, not read, so this takes milliseconds whatever their size.

    If the model is replaced meanwhile, its files may be of two versions: then the new one is opened.
    """
    for _ in range(TRIES):
        version = storage.version_of(Path(path))
        try:
            model = _open(path)
        except FormatError:
            if storage.version_of(Path(path)) == version:
                raise
            continue
        if storage.version_of(Path(path)) == version:
            return model
    raise FormatError(f"{path} is replaced again and again; try later")


def _open(path: str | Path) -> LanguageModel:
    manifest = storage.read_manifest(Path(path))
    kind = manifest.get("kind")
    if kind not in _KINDS:
        raise FormatError(f"{path}: a model of kind {kind!r}; this program knows {', '.join(_KINDS)}")
    module, _, name = _KINDS[kind].partition(":")
    model_class = getattr(import_module(module), name)
    if kind == "mixture":
        model_class = partial(model_class, members=[_open(Path(path) / folder) for folder in manifest["members"]])
    model: LanguageModel = model_class(path)
    return model
