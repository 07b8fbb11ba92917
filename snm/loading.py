"""TODO: docstring."""

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


def load(path: str | Path) -> LanguageModel:
    """Open a model folder. The arrays are mapped, not read: it takes milliseconds whatever their size."""
    manifest = storage.read_manifest(Path(path))
    kind = manifest.get("kind")
    if kind not in _KINDS:
        raise FormatError(f"{path}: a model of kind {kind!r}; this program knows {', '.join(_KINDS)}")
    module, _, name = _KINDS[kind].partition(":")
    family = getattr(import_module(module), name)
    if kind == "mixture":
        family = partial(family, members=[load(Path(path) / folder) for folder in manifest["members"]])
    made: LanguageModel = family(path)
    return made
