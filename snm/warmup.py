"""Compiling kernels ahead of work, by doing the same work on a few made-up sentences.

Numba compiles a kernel when it is first called, and keeps it in a cache. Without this module the first training on a
machine would compile in the middle of each step, and progress bars would count it as work.

Numba compiles one function at a time, so a second process, `python -m snm.warmup`, compiles some kernels of an SNM
meanwhile. It only fills the cache: the first process compiles what it does not find there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from snm.adjustment.function import Adjustment
from snm.adjustment.settings import TrainingSettings
from snm.counted import merge_counts, write_vocabulary
from snm.counts.store import decode, encode
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.kernels import backoff, count_codes, count_merging, counts, matrix_writing, rows
from snm.kernels.compile import is_cached
from snm.layouts.counts import Counts
from snm.layouts.gate import Gate
from snm.layouts.keys import KeyLayout
from snm.layouts.matrix import PADDING
from snm.matrix.reading import open_matrix
from snm.model import LanguageModel
from snm.pipeline import count_text, train
from snm.scoring.model import RowModel
from snm.scratch import scratch_folder
from snm.settings import HYBRID, NEURAL, Settings
from snm.system import default_threads
from snm.text.vocabulary import Vocabulary

_LAST_KERNELS = {  # that training calls; `write_pages` is never compiled by the second process
    "snm": (matrix_writing.write_pages, rows.fill),
    **dict.fromkeys(("kn", "katz", "sbo"), (backoff.copy_rows,)),
}
_COUNTING_KERNELS = counts.collect_rows, count_codes.decode_chunks, count_merging.merge_rows


def is_ready(settings: Settings) -> bool:
    """Whether a training with these settings finds its kernels in the cache."""
    settings = _of_snm(settings)
    if settings.model in NEURAL or settings.engine == "gpu":
        return True
    return all(is_cached(kernel) for kernel in _LAST_KERNELS[settings.model])


def _of_snm(settings: Settings) -> Settings:
    """The settings of the SNM of a hybrid; those of another model as they are."""
    return replace(settings, model="snm") if settings.model == HYBRID else settings


def sentences(n: int) -> Iterator[str]:
    """Made-up sentences, always the same."""
    random = np.random.default_rng(1)
    for _ in range(n):
        yield " ".join(f"w{int(rank)}" for rank in random.zipf(1.3, 8) if rank < 500)


def compile_training(settings: Settings) -> None:
    """Compile the kernels of a training with these settings."""
    with scratch_folder() as folder:
        _train(_of_snm(settings), folder).close()


def compile_counting() -> None:
    """Compile the kernels of `count_text` and `merge_counts`, unless the cache has them."""
    if all(map(is_cached, _COUNTING_KERNELS)):
        return
    with scratch_folder() as place:
        write_vocabulary(sentences(500), place / "vocab", min_count=1, threads=1)
        settings = Settings(vocab=place / "vocab", features="snm5", engine="cpu", threads=1)
        counted = count_text(sentences(500), place / "counts", settings)
        merge_counts([counted, counted], place / "merged", threads=1)


def compile_everything() -> None:
    """Compile the kernels of training and scoring with the default settings, of Kneser-Ney models, and of merging."""
    with scratch_folder() as folder:
        for name in ("snm", "kn"):
            with _train(Settings(model=name), folder) as model:
                compile_scoring(model)
    compile_counting()


def compile_scoring(model: LanguageModel) -> None:
    """Compile the kernels of a model's methods."""
    model.score("w1 w2")
    model.next_words("w1")
    list(model.faults())
    if model.spelling is not None:
        model.score_sentences(["a word"], spelled=True)
        list(model.spelling.faults())
    if isinstance(model, RowModel):
        states, ids = model.state_array([model.start()]), np.zeros(2, np.uint32)
        model.step(model.start(), "w1")
        for words in (ids, ids.reshape(1, 2)):
            model.expand(states, words)
            model.follow(states, words, np.zeros(1, np.int64))


def _train(settings: Settings, folder: Path) -> LanguageModel:
    small = replace(
        settings, min_count=1, max_words=None, vocab=None, tokenizer=None, partitions=None, engine="cpu",
        threads=min(settings.threads, 2), training=replace(settings.training, slots=1 << 12),
    )  # fmt: skip
    dev = sentences(500) if settings.model == "snm" else None
    with _second_process(small):
        return train(sentences(500), folder / settings.model, small, dev=dev)


# ---------------------------------------------------------------------------------------------
# the second process


@contextmanager
def _second_process(settings: Settings) -> Iterator[subprocess.Popen[bytes] | None]:
    """A context in which it runs, if there is a core for it. Where it cannot, or fails, this process compiles alone."""
    command = [sys.executable, "-P", "-m", "snm.warmup", str(settings.weight_bits // 8)]  # -P: no files of this folder
    nowhere, process = subprocess.DEVNULL, None
    with ExitStack() as running:
        if settings.model == "snm" and min(settings.threads, default_threads()) > 1:
            with suppress(OSError, TypeError):  # TypeError: a Python inside another program has no executable
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere)
                running.enter_context(process)
                running.callback(process.kill)
        yield process


def compile_beside(code_bytes: int) -> None:
    """Compile kernels that the training of an SNM calls late: to code counts, weigh rows, and find them in the matrix.

    They are called on one link and an empty matrix, of the types that a training has.
    """
    vocabulary, spec = Vocabulary([]), FeatureSpec("ngram(0..0)")
    words, n = len(vocabulary), len(spec.templates)
    extractor = Extractor(spec, KeyLayout.for_work(words, len(spec.types), 0), vocabulary)
    counts = Counts(
        np.ones(1, np.uint64), np.ones(1, np.int64), np.array([0, 1]), np.ones(1, np.uint32), np.ones(1, np.int64)
    )
    counts = decode(encode(counts, 0, 1 << extractor.layout.bucket_bits, extractor.layout), extractor.layout)
    Adjustment(extractor, TrainingSettings(), 1 << 12).weigh(counts)
    lengths = {"starts": 3, "data": PADDING + 1, "values": 1 << 8 * code_bytes, "unigrams": words}
    pages = {"bits": 1, "code_bytes": code_bytes, "single_types": [], "unigram_code": 0}
    matrix = open_matrix(lambda name, dtype, *others: np.ones(lengths.get(name, 0), dtype), pages, extractor)
    rows.find(np.zeros((n, 1), np.uint64), counts.targets, matrix, Gate.of(np.zeros(n, np.float32), n))


def _end_with_parent() -> None:
    """End this process when standard input ends, which a parent that was killed has closed too."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    compile_beside(int(sys.argv[1]))
