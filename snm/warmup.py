"""Compiling kernels ahead of work, by doing the same work on a few made-up sentences.

Numba compiles a kernel when it is first called, and keeps it in a cache. Without this module the first training on a
machine would compile in the middle of each step, and progress bars would count it as work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from snm.kernels import backoff, matrix_writing, rows
from snm.kernels.compile import is_cached
from snm.model import LanguageModel
from snm.pipeline import train
from snm.scoring.model import RowModel
from snm.settings import NEURAL, Settings

_LAST_KERNELS = {  # that training calls
    "snm": (matrix_writing.write_pages, rows.fill),
    **dict.fromkeys(("kn", "katz", "sbo"), (backoff.copy_rows,)),
}


def is_ready(settings: Settings) -> bool:
    """Whether a training with these settings finds its kernels in the cache."""
    if settings.model in NEURAL or settings.engine == "gpu":
        return True
    return all(is_cached(kernel) for kernel in _LAST_KERNELS[settings.model])


def sentences(n: int) -> Iterator[str]:
    """Made-up sentences, always the same."""
    random = np.random.default_rng(1)
    for _ in range(n):
        yield " ".join(f"w{int(rank)}" for rank in random.zipf(1.3, 8) if rank < 500)


def compile_training(settings: Settings) -> None:
    """Compile the kernels of a training with these settings."""
    with tempfile.TemporaryDirectory() as folder:
        _train(settings, Path(folder)).close()


def compile_everything() -> None:
    """Compile the kernels of training and scoring with the default settings, and of Kneser-Ney models."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("snm", "kn"):
            with _train(Settings(model=name), Path(folder)) as model:
                compile_scoring(model)


def compile_scoring(model: LanguageModel) -> None:
    """Compile the kernels of a model's methods."""
    model.score("w1 w2")
    model.next_words("w1")
    list(model.faults())
    if isinstance(model, RowModel):
        states, ids = model.state_array([model.start()]), np.zeros(2, np.uint32)
        model.step(model.start(), "w1")
        for words in (ids, ids.reshape(1, 2)):
            model.expand(states, words)
            model.follow(states, words, np.zeros(1, np.int64))


def _train(settings: Settings, folder: Path) -> LanguageModel:
    small = replace(
        settings, min_count=1, max_words=None, vocab=None, partitions=None, engine="cpu",
        threads=min(settings.threads, 2), training=replace(settings.training, slots=1 << 12),
    )  # fmt: skip
    dev = sentences(500) if settings.model == "snm" else None
    return train(sentences(500), folder / settings.model, small, dev=dev)
