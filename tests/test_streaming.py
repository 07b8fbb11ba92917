"""Streams: chunks of logits give the result of the whole utterance, in bounded memory."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm.decoding import Stream, build_ctcdecoder
from snm.decoding import streaming as module
from snm.errors import SettingsError
from snm.settings import Settings
from tests.channel import LABELS, logits_of, write_sound_alikes
from tests.conftest import train


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound_alikes(tmp_path_factory.mktemp("streams") / "text.txt")


@pytest.fixture(scope="module")
def decoder(text: Path) -> snm.decoding.Decoder:
    model: Any = train([text], text.parent / "kn.model", Settings(model="kn", order=3, threads=1))
    return build_ctcdecoder(LABELS, model, alpha=0.7, beta=1.0)


def long_logits(text: Path, lines: int, noise: float = 0.3) -> np.ndarray:
    return logits_of(" ".join(text.read_text().split("\n")[:lines]), noise, np.random.default_rng(2))


def feed(stream: Stream, logits: np.ndarray, size: int = 10) -> list[Any]:
    return [stream.feed(logits[at : at + size]) for at in range(0, len(logits), size)]


@pytest.mark.parametrize("size", [1, 10, 10_000])
def test_chunks_give_the_whole(decoder: Any, text: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT_FRAMES", 40)  # forget often
    logits = long_logits(text, 6)
    stream = decoder.stream(hotwords=["bed"])
    partials = feed(stream, logits, size)
    found, expected = stream.finish(), decoder.decode_beams(logits, prune_history=True, hotwords=["bed"])
    assert [beam.text for beam in found] == [beam.text for beam in expected]
    assert [(b.logit_score, b.lm_score) for b in found] == [(b.logit_score, b.lm_score) for b in expected]
    assert [beam.last_lm_state for beam in found] == [beam.last_lm_state for beam in expected]
    assert found[0].text_frames == expected[0].text_frames
    for before, after in pairwise(partials):
        assert after.stable.startswith(before.stable)
        assert after.text.startswith(after.stable)
    assert partials[-1].frames == len(logits)
    assert found[0].text.startswith(partials[-1].stable)
    if size == 10:
        assert len(partials[-1].stable) > 0.5 * len(found[0].text)


def test_a_stream_is_pickled_between_chunks(decoder: Any, text: Path) -> None:
    logits = long_logits(text, 4)
    stream = decoder.stream()
    for at in range(0, len(logits), 50):
        stream.feed(logits[at : at + 50])
        if at % 100 == 0:
            stream = pickle.loads(pickle.dumps(stream))
    assert stream.finish() == feed_all(decoder, logits)


def feed_all(decoder: Any, logits: np.ndarray) -> list[Any]:
    stream = decoder.stream()
    stream.feed(logits)
    found: list[Any] = stream.finish()
    return found


def test_many_streams_at_once(decoder: Any, text: Path) -> None:
    lines = text.read_text().split("\n")[:100]
    random = np.random.default_rng(1)
    given = [logits_of(line, 0.2, random) for line in lines]
    streams = [decoder.stream(beam_width=20) for _ in given]
    for at in range(0, max(map(len, given)), 10):
        for stream, logits in zip(streams, given, strict=True):
            if at < len(logits):
                stream.feed(logits[at : at + 10])
    found = [stream.finish()[0].text for stream in streams]
    assert found == [decoder.decode(logits, 20) for logits in given]


def test_memory_does_not_grow(decoder: Any, text: Path) -> None:
    """The arrays of a stream after 20 texts are as large as after 2."""
    logits = long_logits(text, 60, 0.2)
    stream, sizes = decoder.stream(), []
    for at in range(0, len(logits), 100):
        stream.feed(logits[at : at + 100])
        sizes.append(sum(array.nbytes for array in stream._search.arrays))
    assert len(logits) > 5000
    assert sizes[-1] == sizes[len(sizes) // 4]
    words = stream.finish()[0]
    assert len(words.text_frames) == len(words.text.split()) > 400


def test_a_finished_stream(decoder: Any) -> None:
    stream = decoder.stream()
    assert stream.partial == ("", "", 0)
    stream.feed(np.zeros((0, len(LABELS))))
    assert stream.finish()[0].text == ""
    with pytest.raises(SettingsError, match="finished"):
        stream.feed(np.zeros((1, len(LABELS))))
    with pytest.raises(SettingsError, match="finished"):
        stream.finish()
