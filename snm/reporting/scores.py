"""The probability of every word of a text under a model, and which line each word is of."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from snm.errors import InputError
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.model import LanguageModel, PerplexityReport, perplexity_report
from snm.progress import Progress
from snm.reporting.texts import Sample
from snm.scoring.lines import has_words
from snm.text.encoding import Text, divide_block, encode_blocks

PART = 1 << 17  # tokens scored between two steps of the bar
SLOW_PART = 1 << 13  # of a model that takes long


@dataclass
class Scored:
    """A model's view of a text. Arrays have an entry for each target: every word, and the end of each sentence."""

    name: str
    model: LanguageModel
    text: Text
    report: PerplexityReport
    words: np.ndarray  # uint32: the ids of the targets
    logs: np.ndarray  # float64: ln P, unknown words as `<UNK>`; NaN where a closed vocabulary leaves a word out
    spelled: np.ndarray | None  # the same with unknown words spelled; None if the model cannot
    line: np.ndarray  # int64: the line of the sample that each is of
    divided: list[bytes]  # the lines of the sample as the model's tokenizer divides them

    def is_aligned(self, other: Scored) -> bool:
        """Whether both have the same targets, word for word."""
        mine, others = self.model.vocabulary, other.model.vocabulary
        return mine.tokenizer == others.tokenizer and bool(np.array_equal(self.line, other.line))

    @cached_property
    def known(self) -> np.ndarray:
        """Which targets the model knows. bool"""
        known: np.ndarray = self.words != UNKNOWN
        return known


def score(name: str, model: LanguageModel, sample: Sample, threads: int, progress: Progress) -> Scored:
    """Score a sample of a text."""
    vocabulary = model.vocabulary
    block = divide_block(sample.data, vocabulary.tokenizer, threads)
    text = encode_blocks([block], vocabulary, spelling=model.spelling)
    if not text.events:
        raise InputError(f"{sample.name}: no words to score; expected one sentence a line")
    divided = block.data.split(b"\n")[:-1]
    with_words = np.flatnonzero([has_words(line) for line in divided])
    if len(divided) != len(sample.lines) or len(with_words) != text.sentences:
        raise InputError(
            f"{sample.name}: {text.sentences:,} sentences under {name} in {len(with_words):,} lines with words; "
            f"expected one sentence a line"
        )
    begun = time.perf_counter()
    p = _probabilities(name, model, text.tokens, threads, progress)
    seconds = time.perf_counter() - begun
    ends = text.tokens[text.targets()] == END
    return scored_of(name, model, text, p, with_words[np.cumsum(ends) - ends], divided, seconds)


def scored_of(
    name: str, model: LanguageModel, text: Text, p: np.ndarray, line: np.ndarray, divided: list[bytes], seconds: float
) -> Scored:
    """A model's view of a text whose tokens have these probabilities. line: that of each target"""
    target = text.targets()
    words, p = text.tokens[target], p[target]
    with np.errstate(divide="ignore"):
        logs = np.log(p)
    spelled = _spelled(model, text, words, logs)
    if model.vocabulary.closed:
        logs[words == UNKNOWN] = np.nan
    return Scored(
        name, model, text, perplexity_report(model.vocabulary, text, p, seconds), words, logs, spelled, line, divided
    )


def without_nan(logs: np.ndarray) -> np.ndarray:
    """ln P with 0 for words that are left out."""
    return np.where(np.isnan(logs), 0.0, logs)


def _spelled(model: LanguageModel, text: Text, words: np.ndarray, logs: np.ndarray) -> np.ndarray | None:
    """ln P of each target with unknown words spelled; None if the model cannot."""
    unknown = words == UNKNOWN
    if not unknown.any():
        return logs.copy()
    if model.vocabulary.closed or text.spellings is None or len(text.spellings) != unknown.sum():
        return None
    spelled = logs.copy()
    spelled[unknown] += text.spellings
    return spelled if np.isfinite(spelled).all() else None


def _probabilities(name: str, model: LanguageModel, tokens: np.ndarray, threads: int, progress: Progress) -> np.ndarray:
    """P of each token, with a bar. Parts end where a sentence or a document does."""
    size = PART if model.scores_in_parallel else SLOW_PART
    begins = np.flatnonzero(tokens == BEGIN)
    chosen = np.searchsorted(begins, np.arange(0, len(tokens), size))
    starts = np.unique(begins[chosen[chosen < len(begins)]])
    with progress(f"scoring {name}", len(tokens)) as bar:
        parts = []
        for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
            parts.append(model.probabilities(tokens[start:end], threads=threads))
            bar(int(end - start))
    return np.concatenate(parts)
