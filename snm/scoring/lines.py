"""Scoring many lines at once: a block of text in, a few numbers a line out. `snm score` and filters use it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snm.kernels.lines import add_up_lines
from snm.model import LanguageModel
from snm.text.encoding import divide_block, encode_blocks
from snm.text.vocabulary import split_words


@dataclass(frozen=True)
class LineScores:
    """Of each line: its log10 probability, NaN if it is blank; its tokens, `</S>` among them; its unknown words; and
    how many tokens have a probability: all, or in a closed vocabulary those that are known."""

    logprob10: np.ndarray  # (lines,) float64
    tokens: np.ndarray  # (lines,) int64
    oov: np.ndarray  # (lines,) int64
    scored: np.ndarray  # (lines,) int64

    @property
    def ppl(self) -> np.ndarray:
        """Perplexity of each line; NaN if it is blank. (lines,) float64"""
        with np.errstate(over="ignore"):
            found: np.ndarray = 10.0 ** (-self.logprob10 / np.maximum(self.scored, 1))
        return found

    def of_records(self, lines: np.ndarray) -> LineScores:
        """The sums over records of `lines[i]` lines each, of which there is at least one; blank lines count nothing."""
        first = np.cumsum(lines) - lines
        blank = np.isnan(self.logprob10)
        total = np.add.reduceat(np.where(blank, 0.0, self.logprob10), first)
        total[np.logical_and.reduceat(blank, first)] = np.nan
        counts = (np.add.reduceat(n, first) for n in (self.tokens, self.oov, self.scored))
        return LineScores(total, *counts)


def score_block(model: LanguageModel, block: bytes, *, spelled: bool, threads: int = 1) -> LineScores:
    """Scores of the lines of a block: validated UTF-8, of which every line ends with a line feed.

    Each line is a segment of its own. `spelled`: see `LanguageModel.score_sentences`; the model must be able to.
    """
    divided = divide_block(block, model.vocabulary.tokenizer, threads)
    block, per_line = divided.data, 1
    if model.vocabulary.document:
        divided, per_line = divided._replace(data=block.replace(b"\n", b"\n\n")), 2
    text = encode_blocks([divided], model.vocabulary, spelling=model._spelling_for(spelled))
    p = model.probabilities(text.tokens, threads=threads)
    with np.errstate(divide="ignore"):
        np.log10(p, out=p)
    logs, n, oov = np.zeros(text.segments), np.zeros(text.segments, np.int64), np.zeros(text.segments, np.int64)
    spellings = np.empty(0) if text.spellings is None else text.spellings
    first_field = len(model.vocabulary) if text.first_field is None else text.first_field
    add_up_lines(text.tokens, p, spellings, first_field, model.vocabulary.closed, logs, n, oov)
    scores = LineScores(logs, n, oov, n - oov if model.vocabulary.closed else n)
    return scores if len(n) * per_line == text.lines else _with_blank_lines(scores, block)


def _with_blank_lines(scores: LineScores, block: bytes) -> LineScores:
    """The scores of all lines of a block, from those of the lines that have words."""
    words = np.array([has_words(line) for line in block.split(b"\n")[:-1]], bool)

    def spread(values: np.ndarray, blank: float = 0) -> np.ndarray:
        found = np.full(len(words), blank, values.dtype)
        found[words] = values
        return found

    return LineScores(
        spread(scores.logprob10, np.nan), spread(scores.tokens), spread(scores.oov), spread(scores.scored)
    )  # fmt: skip


def has_words(line: bytes) -> bool:
    """Whether a line has words other than markers such as `<s>`."""
    if b"<" not in line:
        return bool(line) and not line.isspace()
    return bool(split_words(line.decode()))
