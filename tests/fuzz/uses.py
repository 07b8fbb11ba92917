"""Opening a hostile model, and asking it."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import snm
from snm import kenlm
from snm.baselines.backoff.model import BackoffModel
from snm.counted import CountedText, merge_counts
from snm.describing import describe
from snm.errors import SnmError
from snm.manifest import read
from snm.model import LanguageModel
from snm.pruning.models import prune
from snm.scoring.model import SnmModel
from tests.fuzz.mutations import Files, Special

TEXTS = ["the old stone holds the lantern", "w1 w2 w3 w4 w5 w6", "speaker=a w1 w7 strange w1", "w12", "the the the"]
MAX_MESSAGE = 1500  # characters of an error: a path, and what was found and expected
USES = 4  # of a model, beside opening it


class Failed(Exception):
    """What a model did that it must not."""


def write_files(folder: Path, files: Files) -> int:
    """Write a model; return its size."""
    size = 0
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, bytes):
            size += len(data)
            path.write_bytes(data)
        else:
            _SPECIAL[data](path)
    return size


def _holes(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 36)


_SPECIAL: dict[Special, Callable[[Path], object]] = {
    Special.MISSING: lambda path: None,
    Special.FOLDER: lambda path: path.mkdir(),
    Special.PIPE: os.mkfifo,
    Special.ZEROS: lambda path: path.symlink_to("/dev/zero"),
    Special.LOOP: lambda path: path.symlink_to(path.name),
    Special.ABOVE: lambda path: path.symlink_to(path.parent, target_is_directory=True),
    Special.OUTSIDE: lambda path: path.symlink_to("/etc/passwd"),
    Special.HOLES: _holes,
}


def remove_files(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def use(path: Path, scratch: Path, random: Random, uses: int = USES) -> str:
    """Open what is at `path`, and ask it; say whether it was `refused`, when it was asked, or `answered`.

    `scratch`: a folder for what is written. What must not be raises `Failed`.
    """
    outcome = "answered"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if (path / "counts").is_dir() and random.random() < 0.97:
            return "refused" if _refused(lambda: _use_counts(path, scratch)) else outcome
        opened: list[LanguageModel] = []
        if random.random() < 0.3 and path.is_dir():
            _refused(lambda: describe(read(path), path))
        if _refused(lambda: opened.append(snm.load(path))):
            return "refused"
        (model,) = opened
        for name in random.sample(sorted(ASKED), min(uses, len(ASKED))):
            if _refused(lambda name=name: ASKED[name](model, path, scratch, random)):  # type: ignore[misc]
                outcome = "refused when it was used"
        model.close()
    return outcome


def _refused(call: Callable[[], object]) -> bool:
    """Whether a call ended with an error that users may see."""
    try:
        call()
    except SnmError as error:
        text = str(error)
        if "\n" in text or "\r" in text or len(text) > MAX_MESSAGE or not text:
            raise Failed(f"the error is not one line: {text[:3000]!r}") from error
        text.encode()
        return True
    return False


def _numbers(*values: Any) -> None:
    for value in values:
        if not isinstance(value, float | int | np.floating):
            raise Failed(f"{value!r} is no number")


def _score(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    _numbers(*model.score_sentences(TEXTS))


def _spell(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    if model.spelling is not None:
        _numbers(*model.score_sentences(TEXTS, spelled=True))


def _perplexity(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    _numbers(model.perplexity(TEXTS).ppl)


def _next_words(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    for text in TEXTS[:2]:
        for word, p in model.next_words(text, k=3):
            _numbers(p)
            word.encode()


def _step(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    state, words = model.start(), len(model.vocabulary)
    asked: list[str | int] = ["the", "old", "w1", "w2", *(random.randrange(words) for _ in range(12))]
    for word in asked:
        score, state = model.step(state, word)
        _numbers(score)


def _expand(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    states = model.state_array([model.start()] * 3)
    numbers = np.random.default_rng(random.getrandbits(32))
    for _ in range(4):
        ids = numbers.integers(0, len(model.vocabulary), 70).astype(np.uint32)
        scores = model.expand(states, ids)
        if scores.shape != (3, 70):
            raise Failed(f"scores of shape {scores.shape}")
        states = model.follow(states, ids, np.argsort(-scores, axis=None)[:3])


def _explain(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    for text in TEXTS[:3]:
        for explanation in model.explain(text):
            _numbers(explanation.probability, *(part.share for part in explanation.parts))


def _generate(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    model.generate(seed=1, max_words=4, unknown=True).encode()


def _verify(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    snm.verify(path, contexts=3)


def _describe(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    repr(model), hash(model)
    if path.is_dir():
        for name, value in describe(model.manifest, path):
            f"{name} {value}".encode()


def _as_kenlm(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    if isinstance(model, BackoffModel):
        asked = kenlm.Model(str(path))
        for text in TEXTS[:3]:
            _numbers(*(score for score, _, _ in asked.full_scores(text)))


def _rewrite(model: LanguageModel, path: Path, scratch: Path, random: Random) -> None:
    """What reads all rows."""
    if isinstance(model, BackoffModel):
        snm.export_arpa(model, scratch / "m.arpa")
    if isinstance(model, SnmModel | BackoffModel) and random.random() < 0.2:
        prune(model, scratch / "pruned", links=200, force=True).close()


ASKED: dict[str, Callable[[LanguageModel, Path, Path, Random], None]] = {
    "score": _score, "spell": _spell, "perplexity": _perplexity, "next words": _next_words, "step": _step,
    "expand": _expand, "explain": _explain, "generate": _generate, "verify": _verify, "describe": _describe,
    "kenlm": _as_kenlm, "rewrite": _rewrite,
}  # fmt: skip


def _use_counts(path: Path, scratch: Path) -> None:
    counted = CountedText(path)
    counted.check()
    for counts in counted.store.parts(1 << 10):
        if len(counts.targets) and counts.targets.max() >= len(counted.vocabulary):
            raise Failed("a target is no word")
    merge_counts([path, path], scratch / "merged", force=True, threads=1)


def import_arpa(path: Path, scratch: Path, random: Random) -> str:
    """The same of an ARPA file."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened: list[LanguageModel] = []
        if _refused(lambda: opened.append(snm.import_arpa(path, scratch / "imported", force=True))):
            return "refused"
        for name in random.sample(("score", "perplexity", "next words", "step", "expand", "kenlm"), 2):
            ASKED[name](opened[0], scratch / "imported", scratch, random)
        opened[0].close()
    return "answered"
