"""Projecting a model of any kind on n-grams: a backoff model, for programs that read nothing else.

Two ways lead to the n-grams. Those of an SNM are its own: P(w | h) of each is the model's after the context h alone,
without further words before. With a text they are those of the text; P(w | h) is the same for an SNM, and for other
models the mean over places of the text where h occurs. In both, backoff weights follow: every context sums to one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from snm.baselines.backoff.model import BackoffModel
from snm.counts.index import IndexBuilder
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec, FeatureType
from snm.kernels import backoff as backoff_kernels
from snm.kernels import backoff_pruning as pruning_kernels
from snm.kernels import projection as kernels
from snm.kernels import rows as row_kernels
from snm.layouts.keys import ABSENT, KeyLayout
from snm.layouts.tokens import BEGIN
from snm.manifest import describe_rows
from snm.model import LanguageModel
from snm.progress import Advance, ignore
from snm.pruning.ngrams import build_tree
from snm.scoring.model import SnmModel
from snm.storage import VOCABULARY, ModelWriter
from snm.text.encoding import Text

PIECE = 1 << 19  # n-grams that are made together
PLACES = 4  # of a context in a text, at most, over which probabilities are averaged
LEAST = 1e-12  # of a probability
UNIGRAM_PLACES = 500  # over which the distribution of single words is averaged


@dataclass(frozen=True)
class NgramRows:
    """Rows of n-grams in the order of their keys, as a backoff model has them."""

    features: np.ndarray  # (rows,) uint64
    offsets: np.ndarray  # (rows + 1,) int64
    targets: np.ndarray  # (links,) uint32, sorted inside a row
    probabilities: np.ndarray  # (links,) float32
    parents: np.ndarray  # (rows,) int64: row of the longest shorter context that ends a row's, -1 for row 0
    levels: np.ndarray  # (rows,): words of the context


def extractor_for(model: LanguageModel, order: int, links: int) -> Extractor:
    """The n-gram features of a backoff model with this model's vocabulary."""
    spec = FeatureSpec(f"ngram(0..{order - 1})")
    return Extractor(spec, KeyLayout.for_work(len(model.vocabulary), len(spec.types), links), model.vocabulary)


def write_rows(
    writer: ModelWriter, extractor: Extractor, rows: NgramRows, text: dict[str, int], threads: int = 1
) -> None:
    """Write a backoff model with these probabilities; backoff weights are computed."""
    backoffs = np.ones(len(rows.features), np.float32)
    for level in range(1, len(extractor.spec.types)):
        pruning_kernels.set_backoffs(
            level, rows.levels, rows.parents, rows.offsets, rows.targets, rows.probabilities, backoffs
        )
    index = IndexBuilder(int(rows.features[0]), int(rows.features[-1]), len(rows.features))
    directory = np.concatenate([index.add(rows.features), index.finish()])
    for name, dtype, values in (
        ("features", "<u8", rows.features), ("offsets", "<i8", rows.offsets), ("targets", "<u4", rows.targets),
        ("probabilities", "<f4", rows.probabilities), ("backoffs", "<f4", backoffs),
        ("index", directory.dtype.str, directory),
    ):  # fmt: skip
        writer.array(name, dtype).append(values)
    extractor.vocabulary.write(writer.folder / VOCABULARY)
    by_type = np.bincount(rows.levels, minlength=len(extractor.spec.types))
    how = {"text": text, "index": index.description, "estimation": {"model": "projection"}}
    manifest = describe_rows(extractor, by_type, len(rows.targets), BackoffModel.kind, how)
    writer.finish(manifest, threads)


# ---------------------------------------------------------------------------------------------
# the n-grams of an SNM


def ngram_order(model: SnmModel) -> int:
    """The longest n-grams of a model such that all shorter ones are features too."""
    order = 1
    while FeatureType(0, 0, order) in model.spec.types:
        order += 1
    return order


def rows_of_snm(model: SnmModel, order: int, advance: Advance = ignore) -> NgramRows:
    """The n-grams of an SNM, with their probabilities after their contexts alone."""
    extractor = extractor_for(model, order, model.manifest["links"])
    pieces = []
    for words, lengths, targets in _pieces(model, order):
        p = np.maximum(_after_contexts(model, words, lengths, targets), LEAST)
        pieces.append((extractor.context_keys(words), lengths, targets, p, _parent_keys(extractor, words)))
        advance(len(targets))
    keys, lengths, targets, p, _ = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1, 2, 3, 0))
    parent_keys = np.concatenate([piece[4] for piece in pieces])
    by_key = np.argsort(keys)
    sizes, starts = lengths[by_key], (np.cumsum(lengths) - lengths)[by_key]
    sorted_targets, sorted_p = np.empty_like(targets), np.empty(len(targets), np.float32)
    backoff_kernels.copy_rows(starts, sizes, targets, sorted_targets)
    backoff_kernels.copy_rows(starts, sizes, p.astype(np.float32), sorted_p)
    features, offsets = keys[by_key], np.append(0, np.cumsum(sizes)).astype(np.int64)
    parents = _nearest(features, parent_keys[by_key])
    return NgramRows(
        features, offsets, sorted_targets, sorted_p, parents, extractor.layout.type_of(features).astype(np.int64)
    )


def _parent_keys(extractor: Extractor, words: np.ndarray) -> np.ndarray:
    """Keys of all shorter contexts that end these, the longest first; 0 beyond. (n, order) uint64"""
    made = np.zeros((len(words), len(extractor.spec.types)), np.uint64)
    for first in range(1, words.shape[1] + 1):
        made[:, first - 1] = extractor.context_keys(np.ascontiguousarray(words[:, first:]))
    return made


def _nearest(features: np.ndarray, parent_keys: np.ndarray) -> np.ndarray:
    """The row of the first of several keys that has one; -1 for none."""
    parents = np.full(len(features), -1)
    for column in parent_keys.T:
        at = np.minimum(np.searchsorted(features, column), len(features) - 1)
        here = (parents < 0) & (features[at] == column) & (column != ABSENT)
        parents[here] = at[here]
    return parents


def _pieces(model: SnmModel, order: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Contexts of one length, (n, words); numbers of their links; and the links' targets, sorted in each row."""
    stack = [np.zeros((1, 0), np.uint32)]
    while stack:
        words = stack.pop()
        lengths = _lengths(model, words)
        words, lengths = words[lengths > 0], lengths[lengths > 0]
        cut = max(1, int(np.searchsorted(np.cumsum(lengths), PIECE, "right")))
        if cut < len(words):
            stack.append(words[cut:])
            words, lengths = words[:cut], lengths[:cut]
        if not len(words):
            continue
        targets = _targets(model, words, lengths)
        yield words, lengths, targets
        if words.shape[1] + 1 < order:
            longer = np.column_stack([np.repeat(words, lengths, axis=0), targets])
            if words.shape[1] == 0:
                longer = np.append(longer, [[BEGIN]], axis=0)
            stack.append(np.ascontiguousarray(longer, np.uint32))


def _lengths(model: SnmModel, words: np.ndarray) -> np.ndarray:
    if words.shape[1] == 0:
        return np.array([np.count_nonzero(model.matrix.unigrams)])
    lengths = np.empty(len(words), np.int64)
    kernels.count_targets(model.extractor.context_keys(words), model.matrix, lengths)
    return lengths


def _targets(model: SnmModel, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    if words.shape[1] == 0:
        return np.flatnonzero(model.matrix.unigrams).astype(np.uint32)
    targets = np.empty(lengths.sum(), np.uint32)
    kernels.read_targets(model.extractor.context_keys(words), model.matrix, targets)
    row = np.repeat(np.arange(len(lengths)), lengths).astype(np.uint64)
    return np.sort((row << np.uint64(32)) | targets).astype(np.uint32)


def _after_contexts(model: SnmModel, words: np.ndarray, lengths: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """P of the targets of each row after the words of its context and no others. (targets,) float64"""
    n, length = words.shape
    tokens = np.full((n, length + 2), BEGIN, np.uint32)
    tokens[:, 1:-1] = words
    tokens[:, -1] = targets[np.cumsum(lengths) - lengths]
    keys = np.empty((model.extractor.n_templates, n), np.uint64)
    flat = tokens.ravel()
    per_block = max(1, model.extractor.block // (length + 2))
    for first in range(0, n, per_block):
        last = min(first + per_block, n)
        block = model.extractor.keys(flat, first * (length + 2), last * (length + 2))
        keys[:, first:last] = block[:, length + 1 :: length + 2]
    keys[_needed(model) > length] = ABSENT  # what <S> before the context would add
    return _score(model, keys, tokens[:, -1], np.arange(n), lengths, targets)


def _needed(model: SnmModel) -> np.ndarray:
    """How many words before the target each template reaches back. (templates,)"""
    return np.array([t.r + t.s + t.a for t in model.spec.templates])


def _score(
    model: SnmModel, keys: np.ndarray, any_words: np.ndarray, columns: np.ndarray, lengths: np.ndarray,
    words: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """P of several words after the contexts of some columns of `keys`. (words,) float64"""
    found = row_kernels.find(keys, np.ascontiguousarray(any_words), model.matrix, model._folded)
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    out = np.empty(len(words), np.float64)
    kernels.score_words(
        keys, found.scale, found.row_sum, model.matrix, columns, offsets, words, np.empty(len(words), np.float32), out
    )
    return out


# ---------------------------------------------------------------------------------------------
# the n-grams of a text


def rows_of_text(
    model: LanguageModel, skeleton: BackoffModel, text: Text, make: ModelWriter, places: int = PLACES,
    advance: Advance = ignore,
) -> NgramRows:  # fmt: skip
    """The n-grams of a backoff model that was trained on `text`, with the mean probabilities of another model."""
    tree = build_tree(skeleton, make.scratch)
    sums = np.zeros(len(skeleton.targets), np.float32)
    seen = np.zeros(len(skeleton.index.features), np.int32)
    _average_unigrams(model, skeleton, text, sums, seen)
    for start, stop in skeleton.extractor.blocks(0, len(text.tokens)):
        rows = skeleton._find(skeleton.extractor.keys(text.tokens, start, stop)).T
        for level in range(1, len(rows)):
            _add_places(model, skeleton, text, start, level, rows[level], places, sums, seen)
        advance(stop - start)
    places_of_links = np.repeat(seen, np.diff(skeleton.offsets))
    p = np.maximum(sums / np.maximum(places_of_links, 1), LEAST)
    p = np.where(places_of_links > 0, p, skeleton.link_probabilities)  # such as <S> in the middle of a document
    return NgramRows(
        np.asarray(skeleton.index.features), np.asarray(skeleton.offsets), np.asarray(skeleton.targets),
        p.astype(np.float32), tree.parents.astype(np.int64), tree.levels.astype(np.int64),
    )  # fmt: skip


def _average_unigrams(
    model: LanguageModel, skeleton: BackoffModel, text: Text, sums: np.ndarray, seen: np.ndarray
) -> None:
    """The row of single words: the model's own unigrams if it is an SNM, else the mean of its distributions."""
    targets, _ = skeleton.row(0)
    seen[0] = 1
    if isinstance(model, SnmModel):
        sums[: len(targets)] = (model.matrix.unigrams / model.matrix.unigram_sum)[targets]
        return
    begins = np.flatnonzero(text.tokens == BEGIN)
    places = np.linspace(1, len(text.tokens) - 1, min(UNIGRAM_PLACES, len(text.tokens) - 1)).astype(np.int64)
    places = places[text.tokens[places] != BEGIN]
    total = np.zeros(len(model.vocabulary))
    for k in places.tolist():
        total += model.distribution(text.tokens[begins[np.searchsorted(begins, k) - 1] : k])
    sums[: len(targets)] = (total / max(1, len(places)))[targets]


def _add_places(
    model: LanguageModel, skeleton: BackoffModel, text: Text, start: int, level: int, rows: np.ndarray,
    places: int, sums: np.ndarray, seen: np.ndarray,
) -> None:  # fmt: skip
    """Add probabilities at the places of a block, from `start` on, whose contexts have few so far.

    level: words of the contexts.
    """
    chosen = np.flatnonzero(rows >= 0)
    chosen = chosen[seen[rows[chosen]] < places]
    _, first = np.unique(rows[chosen], return_index=True)  # of several places in a block, one
    chosen = chosen[np.sort(first)]
    if not len(chosen):
        return
    mine = rows[chosen]
    begin, lengths = skeleton.offsets[mine], skeleton.offsets[mine + 1] - skeleton.offsets[mine]
    links = np.repeat(begin - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    sums[links] += probabilities_at(model, text, start + chosen, level, lengths, skeleton.targets[links])
    seen[mine] += 1


def probabilities_at(
    model: LanguageModel, text: Text, places: np.ndarray, level: int, lengths: np.ndarray, words: np.ndarray
) -> np.ndarray:
    """P of several words at each of some places of a text. (words,)

    An SNM sees the last `level` words alone: with all words before, it would recognise the text if it was trained on
    it. Other models see all words.
    """
    tokens = text.tokens
    if isinstance(model, SnmModel):
        first = int(places[0])
        keys = model.extractor.keys(tokens, first, int(places[-1]) + 1)[:, places - first]
        keys = np.ascontiguousarray(keys)
        keys[_needed(model) > level] = ABSENT
        return _score(model, keys, tokens[places], np.arange(len(places)), lengths, words)
    ends = np.cumsum(lengths)
    out = np.empty(len(words))
    for place, begin, end in zip(places.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True):
        context = tokens[_segment_start(tokens, place) : place]
        out[begin:end] = _after(model, context, words[begin:end])
    return out


def _segment_start(tokens: np.ndarray, place: int) -> int:
    """Where the segment of a place begins."""
    start = place - 1
    while tokens[start] != BEGIN:
        start -= 1
    return start


def _after(model: LanguageModel, context: np.ndarray, words: np.ndarray) -> np.ndarray:
    """P of words after a context."""
    state = model.state_array([model.start()])
    for word in context[1:][-model.state_width :]:
        state = model.follow(state, np.array([word], np.uint32), np.zeros(1, np.int64))
    p: np.ndarray = np.nan_to_num(10.0 ** model.expand(state, words)[0])
    return p
