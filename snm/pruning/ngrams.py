"""The n-grams of a backoff model as a tree: the parent of each context, and the context that each n-gram is.

A model has keys, not words. All n-grams are enumerated from the unigrams on, depth first, a piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from snm.baselines.backoff.model import BackoffModel
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.progress import Advance, ignore

PIECE = 1 << 20  # n-grams that are enumerated together
LEAST = 1e-99  # probability: an ARPA file has this for 0
LEAST_UNKNOWN = 1e-7  # share of <UNK> among the tokens of a text, where the vocabulary is closed

Scratch = Callable[[tuple[int, ...], np.dtype[np.generic]], np.ndarray]


@dataclass(frozen=True)
class NgramTree:
    """Rows are contexts, links are n-grams."""

    levels: np.ndarray  # (rows,) uint16: words of the context
    parents: np.ndarray  # (rows,): row of the longest shorter context that ends this one, -1 for none
    children: np.ndarray  # (links,): row whose context is this n-gram, -1 for none
    log_contexts: np.ndarray  # (rows,) float32: log P of the context's words; -inf where no n-gram leads to it


def build_tree(model: BackoffModel, make: Scratch, advance: Advance = ignore) -> NgramTree:
    """The tree of a model; `make` makes its arrays, zeroed."""
    rows, links = len(model.index.features), len(model.targets)
    number = np.dtype(np.int32 if rows < 1 << 31 else np.int64)
    tree = NgramTree(
        model.layout.type_of(model.index.features), make((rows,), number), make((links,), number),
        make((rows,), np.dtype(np.float32)),
    )  # fmt: skip
    tree.parents[:], tree.children[:], tree.log_contexts[:], tree.log_contexts[0] = -1, -1, -np.inf, 0
    for piece in _pieces(model):
        known = piece.children >= 0
        tree.children[piece.links] = piece.children[: len(piece.links)]
        found = piece.children[known]
        tree.log_contexts[found] = tree.log_contexts[piece.rows[known]] + piece.log_probabilities[known]
        tree.parents[found] = _parents(model, piece.ngrams[known])
        advance(len(piece.links))
    return tree


@dataclass(frozen=True)
class _Piece:
    """N-grams of one length. The first are those of `links`; others are contexts only, such as <S>."""

    links: np.ndarray
    rows: np.ndarray  # (n,): of the context of each n-gram
    ngrams: np.ndarray  # (n, words) uint32
    log_probabilities: np.ndarray  # (n,): of the last word after the others
    children: np.ndarray  # (n,): row whose context is the n-gram, -1 for none


def _pieces(model: BackoffModel) -> Iterator[_Piece]:
    stack = [(np.zeros(1, np.int64), np.zeros((1, 0), np.uint32))]
    unknown = max(LEAST_UNKNOWN, model.manifest["text"]["oov"] / max(1, model.manifest["text"]["tokens"]))
    while stack:
        rows, words = stack.pop()
        ends = np.cumsum(model.offsets[rows + 1] - model.offsets[rows])
        cut = max(1, int(np.searchsorted(ends, PIECE, "right")))
        if cut < len(rows):
            stack.append((rows[cut:], words[cut:]))
            rows, words = rows[:cut], words[:cut]
        piece = _extend(model, rows, words, unknown)
        known = piece.children >= 0
        if known.any():
            stack.append((piece.children[known], piece.ngrams[known]))
        yield piece


def _extend(model: BackoffModel, rows: np.ndarray, words: np.ndarray, unknown: float) -> _Piece:
    """The n-grams that the links of some rows make. unknown: P(<UNK>) in a closed vocabulary, where no link has it."""
    lengths = model.offsets[rows + 1] - model.offsets[rows]
    ends = np.cumsum(lengths)
    links = np.repeat(model.offsets[rows] - ends + lengths, lengths) + np.arange(lengths.sum())
    of_link = np.repeat(rows, lengths)
    ngrams = np.column_stack([np.repeat(words, lengths, axis=0), model.targets[links]])
    logs = np.log(np.maximum(model.link_probabilities[links].astype(np.float64), LEAST))
    if words.shape[1] == 0:  # <S> is context only, and as frequent as </S>
        of_link, ngrams = np.append(of_link, 0), np.append(ngrams, [[BEGIN]], axis=0)
        logs = np.append(logs, logs[model.targets[links] == END].sum())
    if model.vocabulary.closed:
        more = np.column_stack([words, np.full(len(words), UNKNOWN, np.uint32)])
        of_link, ngrams = np.append(of_link, rows), np.append(ngrams, more, axis=0)
        logs = np.append(logs, np.full(len(rows), np.log(unknown)))
    ngrams = np.ascontiguousarray(ngrams, np.uint32)
    longest = ngrams.shape[1] >= model.extractor.n_templates
    children = np.full(len(ngrams), -1) if longest else model.rows_of(ngrams)
    return _Piece(links, of_link, ngrams, logs, children)


def _parents(model: BackoffModel, contexts: np.ndarray) -> np.ndarray:
    """The row of the longest shorter context that ends each context. (n, words) to (n,)"""
    found, missing = np.zeros(len(contexts), np.int64), np.arange(len(contexts))
    for first in range(1, contexts.shape[1]):
        rows = model.rows_of(np.ascontiguousarray(contexts[missing, first:]))
        found[missing] = np.maximum(rows, 0)
        missing = missing[rows < 0]
        if not len(missing):
            break
    return found
