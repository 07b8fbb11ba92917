"""What models answer: rows of plain values, in small groups, so that a long answer can be stopped between them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np

from snm.layouts.tokens import END, UNKNOWN
from snm.model import LanguageModel, draw_words, total_score
from snm.scoring.lines import LineScores, score_block
from snm.server.limits import MAX_EXPLAINED, Refusal
from snm.server.prompts import context_of, prompt_of_text, words_of
from snm.server.requests import ExplainRequest, GenerateRequest, NextRequest, PerplexityRequest, ScoreRequest
from snm.text.vocabulary import Vocabulary, split_words

PIECE = 1 << 14  # characters scored at a time
WORDS = 16  # that are sampled at a time
FIGURES = ("sentences", "tokens", "oov", "oov_rate", "logprob10", "ppl", "ppl_no_oov", "ppl_spelled", "bytes",
           "bits_per_byte")  # fmt: skip
Rows = Iterator[list[Any]]


def number(value: float | None) -> float | None:
    """A number as JSON has it."""
    return value if value is not None and math.isfinite(value) else None


def scores(model: LanguageModel, asked: ScoreRequest) -> Rows:
    spelled = model.spelling is not None if asked.spelled is None else asked.spelled
    if spelled and model.spelling is None and not model.vocabulary.closed:
        raise Refusal(400, "spelled: this model has no spelling model; leave it out, or send false")
    for texts in _pieces([text.replace("\n", " ") for text in asked.texts]):
        if asked.words:
            words = model.score_words(texts, spelled=spelled)
            yield [_scored_words(model.vocabulary, scored) for scored in words]
        else:
            block = "".join(f"{text}\n" for text in texts).encode()
            yield _scored_lines(score_block(model, block, spelled=spelled))


def _pieces(texts: list[str]) -> Iterator[list[str]]:
    """Texts, some at a time."""
    some, size = list[str](), 0
    for text in texts:
        some.append(text)
        size += len(text) + 1
        if size >= PIECE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _scored_lines(lines: LineScores) -> list[dict[str, Any]]:
    columns = lines.logprob10.tolist(), lines.tokens.tolist(), lines.oov.tolist(), lines.ppl.tolist()
    return [
        {"logprob10": number(p), "tokens": n, "oov": oov, "ppl": number(ppl) if n else None}
        for p, n, oov, ppl in zip(*columns, strict=True)
    ]


def _scored_words(vocabulary: Vocabulary, scored: list[tuple[str, float]]) -> dict[str, Any]:
    known = [vocabulary.ids.get(word, UNKNOWN) != UNKNOWN for word, _ in scored]
    counted = sum(not math.isnan(p) for _, p in scored)
    p = total_score(scored)
    return {
        "logprob10": number(p), "tokens": len(scored), "oov": len(known) - sum(known),
        "ppl": _perplexity(p, counted) if scored else None,
        "words": [
            {"word": word, "logprob10": number(p), "oov": not is_known}
            for (word, p), is_known in zip(scored, known, strict=True)
        ],
    }  # fmt: skip


def _perplexity(log10_p: float, tokens: int) -> float | None:
    try:
        return number(10.0 ** (-log10_p / max(tokens, 1)))
    except OverflowError:
        return None


def perplexity(model: LanguageModel, asked: PerplexityRequest) -> dict[str, Any]:
    lines = asked.text.split("\n")
    if not any(split_words(line) for line in lines):
        empty: dict[str, Any] = {"sentences": 0, "tokens": 0, "oov": 0} | ({"results": []} if asked.sentences else {})
        return dict.fromkeys(FIGURES) | empty
    report = model.perplexity(lines)
    answer = {name: getattr(report, name) for name in FIGURES}
    answer = {name: number(value) if isinstance(value, float) else value for name, value in answer.items()}
    if asked.sentences:
        answer["results"] = list(_sentences(model, asked.text))
    return answer


def _sentences(model: LanguageModel, text: str) -> Iterator[dict[str, Any]]:
    """The scores of the sentences of a text, `<UNK>` for words outside the vocabulary."""
    if model.vocabulary.tokenizer is not None:
        lines = _scored_lines(score_block(model, (text + "\n").encode(), spelled=False))
        yield from (line for line in lines if line["tokens"])
        return
    prompt = prompt_of_text(text + "\n", model.vocabulary)
    ids, p = np.array(prompt.ids), model.probabilities(prompt.tokens)[prompt.places]
    with np.errstate(divide="ignore"):
        logs = np.log10(p)
    left_out = (ids == UNKNOWN) & model.vocabulary.closed
    logs[left_out] = 0
    first = 0
    for end in np.flatnonzero(ids == END).tolist():
        own = slice(first, end + 1)
        total, n = float(logs[own].sum()), end + 1 - first
        yield {
            "logprob10": number(total), "tokens": n, "oov": int((ids[own] == UNKNOWN).sum()),
            "ppl": _perplexity(total, n - int(left_out[own].sum())),
        }  # fmt: skip
        first = end + 1


def next_words(model: LanguageModel, asked: NextRequest) -> Rows:
    for text in asked.texts:
        p = model.distribution(context_of(text, model))
        ids = np.arange(len(p)) if not asked.prefix else _beginning_with(model.vocabulary, asked.prefix)
        yield [_best(model.vocabulary, p, ids, asked.k)]


def _best(vocabulary: Vocabulary, p: np.ndarray, ids: np.ndarray, k: int) -> list[dict[str, Any]]:
    own = p[ids]
    if k < len(ids):
        best = np.argpartition(-own, k)[:k]
        ids, own = ids[best], own[best]
    order = np.lexsort((ids, -own))
    pairs = zip(ids[order].tolist(), own[order].tolist(), strict=True)
    return [{"word": vocabulary.words[i], "probability": value} for i, value in pairs if value > 0]


def _beginning_with(vocabulary: Vocabulary, prefix: str) -> np.ndarray:
    """Ids of the words that begin with some characters; `<UNK>` and the like never do. (words,) int64"""
    words, ids = _sorted_words(vocabulary.lines)
    first = bisect_left(words, prefix)
    last = bisect_left(words, prefix + "\U0010ffff", first)
    return ids[first:last]


@lru_cache(maxsize=16)
def _sorted_words(lines: bytes) -> tuple[list[str], np.ndarray]:
    """The words of a vocabulary in the order of their characters, and their ids."""
    words = lines.decode().split("\n")[3:-1]
    order = sorted(range(len(words)), key=words.__getitem__)
    return [words[i] for i in order], np.array(order, np.int64) + 3


def explanations(model: LanguageModel, asked: ExplainRequest) -> Rows:
    for text in asked.texts:
        words = words_of(text, model.vocabulary)
        has_words = bool(model.vocabulary.split(" ".join(words))[1])
        if len(words) > MAX_EXPLAINED:
            raise Refusal(413, f"texts: a text of {len(words):,} words; expected up to {MAX_EXPLAINED} to explain")
        yield [[_explained(word, asked.top) for word in model.explain(words)] if has_words else []]


def _explained(explanation: Any, top: int) -> dict[str, Any]:
    parts = [asdict(part) for part in explanation.parts[:top]]
    return {
        "word": explanation.word, "probability": explanation.probability, "sources": explanation.sources,
        "parts": parts, "more": sum(part.share for part in explanation.parts[top:]),
    }  # fmt: skip


def generated(model: LanguageModel, asked: GenerateRequest) -> Rows:
    """Sampled sentences; an empty group after every few words."""
    prompt = words_of(asked.prompt, model.vocabulary)
    begin = model.context(prompt)
    for i in range(asked.n):
        random = np.random.default_rng(None if asked.seed is None else (asked.seed, i))
        words = model.vocabulary.split(" ".join(prompt))[1]
        drawn = draw_words(model, begin, random, asked.max_words, asked.temperature, asked.unknown)
        for count, (word, _) in enumerate(drawn, 1):
            if word != END:
                words.append(model.vocabulary.words[word])
            if not count % WORDS:
                yield []
        tokenizer = model.vocabulary.tokenizer
        yield [" ".join(words) if tokenizer is None else tokenizer.join(words)]
