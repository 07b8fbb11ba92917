"""Texts and helpers that several test files use."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numba import njit

from snm import pipeline
from snm.counts.counting import Counter, Counting
from snm.counts.store import CountsWriter, StoredCounts, decode
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.layouts.counts import Counts
from snm.layouts.keys import KeyLayout
from snm.layouts.tokens import BEGIN, END
from snm.scoring.model import RowModel
from snm.text.encoding import Text, count_words
from snm.text.vocabulary import Vocabulary

# the first example of a property compiles kernels, so no example has a deadline
settings.register_profile("snm", deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
settings.load_profile("snm")


def temporary_file() -> IO[bytes]:
    return tempfile.TemporaryFile(buffering=0)


def parts_of(counting: Counting) -> list[Counts]:
    """The parts of C, decoded."""
    return [decode(part, counting.layout) for part in counting]


def store_of(text: Text, extractor: Extractor, folder: Path, **options: Any) -> StoredCounts:
    """The counts of a text in a folder. `options` of `Counter`."""
    writer = CountsWriter(folder, extractor.layout)
    for part in Counter(text, extractor, 1 << 30, **options):
        writer.append(part)
    return writer.finish(count_words(text, len(extractor.vocabulary)))


@cache
def entry_of(helper: Any) -> Any:
    """A helper with an entry from Python. Not cached: the cache would give the one without."""
    return njit(helper.py_func)


def train(*arguments: Any, **more: Any) -> RowModel:
    """`snm.train` of an SNM or backoff model."""
    model = pipeline.train(*arguments, **more)
    assert isinstance(model, RowModel)
    return model


def text_of(sentences: list[list[int]]) -> Text:
    """Sentences of word ids (3 and up, or 2 for <UNK>) as a text."""
    tokens = [t for sentence in sentences for t in (BEGIN, *sentence, END)]
    return Text(np.array(tokens, np.uint32), len(sentences))


def vocabulary_of(size: int, closed: bool = False) -> Vocabulary:
    return Vocabulary([f"w{i}" for i in range(size - 3)], closed=closed)


def random_text(seed: int, sentences: int = 40, words: int = 12, longest: int = 14) -> Text:
    """Random sentences of few words, so that counts above one are common."""
    random = np.random.default_rng(seed)
    return text_of([(2 + random.zipf(1.6, random.integers(1, longest)) % words).tolist() for _ in range(sentences)])


def write_bigrams(path: Path, seed: int, sentences: int, words: int, followers: int) -> Path:
    """A file of random text; four of five words are one of a few successors of the word before."""
    random = np.random.default_rng(seed)
    follow = random.integers(0, words, (words, followers))
    lines, word = [], 0
    for _ in range(sentences):
        sentence = []
        for _ in range(random.integers(2, 20)):
            word = int(follow[word, random.integers(followers)] if random.random() < 0.8 else random.integers(words))
            sentence.append(f"w{word}")
        lines.append(" ".join(sentence))
    path.write_text("\n".join(lines))
    return path


def extractor_of(
    features: str, text: Text, words: int, closed: bool = False, classes: np.ndarray | None = None
) -> Extractor:
    spec = FeatureSpec(features)
    layout = KeyLayout.for_work(words, len(spec.types), text.events * len(spec.templates))
    return Extractor(spec, layout, vocabulary_of(words, closed), classes)


SMALL_SKIPS = "ngram(0..3) + skip(r=1..2, s=1..2, words=1..3) + skip(r=1, s=1..*, words=1..2, tied, cap=6)"


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training text with a simple grammar."""
    random = np.random.default_rng(7)
    subjects, verbs, objects = (
        ["the cat", "a dog", "the old man"],
        ["sees", "likes", "eats"],
        ["fish", "the cat", "cake"],
    )
    lines = [" ".join([random.choice(subjects), random.choice(verbs), random.choice(objects)]) for _ in range(400)]
    path = tmp_path_factory.mktemp("corpus") / "train.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def model_path(corpus_file: Path) -> Path:
    from snm.pipeline import train
    from snm.settings import Settings

    path = corpus_file.parent / "small.model"
    train([corpus_file], path, Settings(features=SMALL_SKIPS, threads=1))
    return path


def shared_data(*parts: str) -> Path:
    """Real text beside the repository; without it, the test is skipped."""
    root = Path(os.environ.get("SNM_DATA", Path(__file__).parents[2] / "shared" / "data"))
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"needs real text at {path} (set SNM_DATA to its folder)")
    return path
