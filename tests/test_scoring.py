"""The look-up rounds of scoring text, and the beam, against the slow reader of models, which has neither."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snm.adjustment.settings import TrainingSettings
from snm.kernels import rows as row_kernels
from snm.kernels.simd import TILE
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.reference.format import Row, SnmModel, read_model
from snm.scoring import texts as scoring_texts
from snm.scoring.model import SnmModel as FastModel
from snm.settings import Settings
from tests.conftest import SMALL_SKIPS, train, write_bigrams

DEFAULTS = Settings(threads=1, min_count=1, gate=8)
CASES = {
    "skips": replace(DEFAULTS, features=SMALL_SKIPS, prune=1),
    "pruned": replace(DEFAULTS, features=f"ngram(0..6) + {SMALL_SKIPS}", prune=3),
    "rounds": replace(DEFAULTS, features="snm10-skip", prune=2, gate=0),
    "classes-closed": replace(DEFAULTS, features="medium", classes=8, closed=True, min_count=15, weight_bits=16),
    "no-singles": replace(DEFAULTS, features="snm5-skip", gate=0, training=TrainingSettings(loss="poisson")),
    "unigrams": replace(DEFAULTS, order=1, gate=0),
}
WORDS = 40  # of the text; ids from 3 on

Models = tuple[SnmModel, FastModel]


@pytest.fixture(scope="module", params=CASES)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("scoring")
    text = write_bigrams(folder / "text", 3, 400, WORDS, 4)
    fast = train(text, folder / "model", CASES[request.param])
    slow = read_model(folder / "model")
    assert isinstance(slow, SnmModel)
    assert isinstance(fast, FastModel)
    return slow, fast


def sentences_of(fast: FastModel) -> st.SearchStrategy[list[int]]:
    """Sentences, of words that follow each other in the training text or do not; or none."""
    words = st.integers(UNKNOWN, len(fast.vocabulary) - 1)
    seen = encode(fast, (fast.path.parent / "text").read_text().split("\n"))
    return st.lists(words, max_size=12) | st.sampled_from(seen)


def encode(fast: FastModel, lines: list[str]) -> list[list[int]]:
    return [fast.vocabulary.ids_of(line.split()).tolist() for line in lines]


def slow_find(slow: SnmModel, context: list[int], target: int) -> list[tuple[float, ...]]:
    """What `find` has of one event: code, links, row sum, weight of the target and the gate's factor, by template."""
    none = Row(0, dict.fromkeys(range(1), 0.0), 0.0)
    rows = (
        slow.event_rows(context) if context and target not in slow.never_targets else [None] * len(slow.keys([BEGIN]))
    )
    scales = slow.scales(rows)
    return [
        (row.count_code, len(row.weights), row.row_sum, row.weights.get(target, 0.0), scale)
        for row, scale in zip((row or none for row in rows), scales, strict=True)
    ]


@settings(max_examples=8)
@given(data=st.data())
def test_found_rows_are_those_that_the_slow_reader_finds(models: Models, data: st.DataObject) -> None:
    slow, fast = models
    sentences = data.draw(st.lists(sentences_of(fast), min_size=1, max_size=6))
    tokens = np.array([t for sentence in sentences for t in (BEGIN, *sentence, END)], np.uint32)
    found = row_kernels.find(fast.extractor.keys(tokens, 0, len(tokens)), tokens, fast.matrix, fast._folded)
    begin = 0
    for k, token in enumerate(tokens.tolist()):
        begin = k if token == BEGIN else begin
        expected = slow_find(slow, tokens[begin:k].tolist(), token)
        assert np.array(found)[:, :, k].T.tolist() == pytest.approx(np.array(expected), rel=1e-5, abs=0)


def test_scores_of_a_text_in_many_blocks_are_the_slow_readers(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of events are cut inside sentences, and rounds have more items than a batch."""
    slow, fast = models
    lines = (fast.path.parent / "text").read_text().split("\n")[:250]
    tokens = [token for sentence in encode(fast, lines) for token in (BEGIN, *sentence, END)]
    monkeypatch.setattr(fast.extractor, "block", 17 * TILE)
    monkeypatch.setattr(scoring_texts, "MAX_EVENTS", 17 * TILE)
    assert len(tokens) > 2 * 17 * TILE
    monkeypatch.setattr(fast._scorer, "_idle", {})  # scratch memory for other blocks
    found, begin = fast.probabilities(np.array(tokens, np.uint32)), 0
    for k in range(len(tokens)):
        begin = k if tokens[k] == BEGIN else begin
        if k % 17 == 0:
            expected = slow.probability(tokens[begin:k], tokens[k]) if k > begin else 0.0
            assert found[k] == pytest.approx(expected, rel=1e-5, abs=0)


def context_of(state: list[int]) -> list[int]:
    """The context of a state's ids: from its last `<S>` on, or all of it."""
    begins = [i for i, token in enumerate(state) if token == BEGIN]
    return state[begins[-1] :] if begins else state


def slow_log10(slow: SnmModel, state: list[int], word: int) -> float:
    """log10 P(word | state), NaN of a word that is never predicted."""
    p = slow.probability(context_of(state), word)
    return float(np.log10(p)) if p > 0 else float("nan")


def draw_states(fast: FastModel, data: st.DataObject, n: int) -> np.ndarray:
    """States with the last words of sentences, some of them equal."""
    span = fast.extractor.span
    sentences = [[BEGIN, *data.draw(sentences_of(fast))] for _ in range(1 + n // 8)]
    contexts = [sentence[: 1 + data.draw(st.integers(0, len(sentence)))] for sentence in sentences]
    states = [([BEGIN] * span + context)[-span:] for context in contexts]
    return np.array([states[i % len(states)] for i in range(n)], np.uint32)


@settings(max_examples=8)
@given(data=st.data(), n=st.sampled_from([1, 2, 5, 17, 64, 65]), shared=st.booleans())
def test_expanded_states_have_the_slow_readers_scores(models: Models, data: Any, n: int, shared: bool) -> None:
    slow, fast = models
    states, m = draw_states(fast, data, n), data.draw(st.sampled_from([1, 2, 3, 70] if n < 5 else [1, 4]))
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    words = random.integers(0, len(fast.vocabulary), m if shared else (n, m)).astype(np.uint32)
    tagged = states ^ np.uint32(fast.vocabulary.tag)
    found = fast.expand(tagged, words)
    rows = np.broadcast_to(words, (n, m)).tolist()
    cache: dict[tuple[tuple[int, ...], int], float] = {}
    for c, state in enumerate(states.tolist()):
        for i, word in enumerate(rows[c]):
            key = tuple(state), word
            cache[key] = cache[key] if key in cache else slow_log10(slow, state, word)
            assert found[c, i] == pytest.approx(cache[key], rel=1e-5, abs=1e-6, nan_ok=True)
    chosen = random.integers(0, n * m, 2 * n)
    after = fast.follow(tagged, words, chosen) ^ np.uint32(fast.vocabulary.tag)
    expected = [[*states[k // m].tolist()[1:], rows[k // m][k % m]] for k in chosen.tolist()]
    assert after.tolist() == expected


@settings(max_examples=8)
@given(data=st.data())
def test_steps_have_the_slow_readers_scores(models: Models, data: st.DataObject) -> None:
    slow, fast = models
    state, context = fast.start(), [BEGIN]
    for word in (*data.draw(sentences_of(fast)), END):
        score, state = fast.step(state, slow.words[word])
        assert score == pytest.approx(slow_log10(slow, context, word), rel=1e-5, abs=1e-6, nan_ok=True)
        context.append(word)
        span = fast.extractor.span
        ids = np.frombuffer(state, "<u4") ^ np.uint32(fast.vocabulary.tag)
        assert ids.tolist() == ([BEGIN] * span + context)[-span:]
