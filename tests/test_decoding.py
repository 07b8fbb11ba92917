"""CTC decoding: beside the oracle, hot words, closed lexicon, token-level models, results, errors."""

from __future__ import annotations

import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm.decoding import Beam, Decoder, build_ctcdecoder, confidences
from snm.decoding.logits import log_probabilities
from snm.errors import InputError, SettingsError, SnmError
from snm.reference import decoding as reference
from snm.settings import Settings
from tests.channel import LABELS, logits_of, piece_labels, piece_logits_of, pieces_of, write_sound_alikes
from tests.conftest import SMALL_SKIPS, train

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound_alikes(tmp_path_factory.mktemp("decoding") / "text.txt")


@pytest.fixture(scope="module")
def backoff(text: Path) -> snm.BackoffModel:
    model: Any = train([text], text.parent / "kn.model", Settings(model="kn", order=3, threads=1))
    return model  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def skips(text: Path) -> snm.SnmModel:
    model: Any = train([text], text.parent / "skips.model", Settings(features=SMALL_SKIPS, threads=1))
    return model  # type: ignore[no-any-return]


def sentences(text: Path, n: int = 6, noise: float = 0.3) -> list[tuple[str, np.ndarray]]:
    random = np.random.default_rng(5)
    return [(line, logits_of(line, noise, random)) for line in text.read_text().split("\n")[:n]]


def known_words(model: snm.LanguageModel) -> frozenset[str]:
    return frozenset(model.vocabulary.words[3:])


def oracle_of(model: snm.LanguageModel | None, order: int = 1, **how: Any) -> reference.Search:
    labels = how.pop("labels", LABELS)
    if model is None:
        return reference.Search(labels, **how)
    words = known_words(model)
    return reference.Search(labels, step=model.step, begin=model.start(), words=words, order=order, **how)


def check(found: list[Beam], expected: list[tuple[str, float, float]], first: int = 10) -> None:
    """The same texts and scores. Texts with equal scores may come in any order."""
    assert [beam.lm_score for beam in found[:first]] == pytest.approx(
        [total for *_, total in expected[:first]], abs=1e-4
    )
    scores = {text: (acoustic, total) for text, acoustic, total in expected}
    for beam in found[:first]:
        assert (beam.logit_score, beam.lm_score) == pytest.approx(scores[beam.text], abs=1e-4)
        assert " ".join(word for word, _ in beam.text_frames) == beam.text


class TestBesideTheOracle:
    @pytest.mark.parametrize("by_history", [False, True])
    def test_a_backoff_model(self, text: Path, backoff: snm.BackoffModel, by_history: bool) -> None:
        decoder = build_ctcdecoder(LABELS, backoff, alpha=0.6, beta=1.0)
        settings = oracle_of(backoff, 3, alpha=0.6, beta=1.0, width=20, by_history=by_history)
        for _, logits in sentences(text):
            found = decoder.decode_beams(logits, 20, prune_history=by_history)
            check(found, reference.decode(logits.astype(np.float64), settings))
            if by_history:
                assert decoder.decode(logits, 20) == found[0].text

    def test_skips(self, text: Path, skips: snm.SnmModel) -> None:
        decoder = build_ctcdecoder(LABELS, skips.path)
        for _, logits in sentences(text, 3):
            settings = oracle_of(skips, width=15)
            check(decoder.decode_beams(logits, 15), reference.decode(logits.astype(np.float64), settings))

    @pytest.mark.parametrize("kind", ["lstm", "hsme", "mixture"])
    def test_models_of_other_kinds(self, kind: str) -> None:
        model = snm.load(GOLDEN / "format3" / kind)
        labels = ["", " ", *"abcdefghijklmnopqrstuvwxyz"]
        decoder = build_ctcdecoder(labels, model)
        logits = logits_of("the old stone", 0.3, np.random.default_rng(2))[:, :28]
        settings = oracle_of(model, 1 << 16, labels=labels, width=8, by_history=True)
        rows = log_probabilities(logits, decoder._set)
        check(decoder.decode_beams(logits, 8, prune_history=True), reference.decode(rows, settings))

    def test_no_model(self, text: Path) -> None:
        decoder = build_ctcdecoder(LABELS)
        for _, logits in sentences(text, 3):
            check(
                decoder.decode_beams(logits, 15), reference.decode(logits.astype(np.float64), oracle_of(None, width=15))
            )

    def test_pieces(self, text: Path, backoff: snm.BackoffModel) -> None:
        labels = piece_labels(text.read_text().split(), 80)
        decoder = build_ctcdecoder(labels, backoff)
        assert decoder.labels == [*labels, ""]
        random = np.random.default_rng(3)
        for line in text.read_text().split("\n")[:5]:
            logits = piece_logits_of(line, labels, 0.3, random)
            settings = oracle_of(backoff, labels=[*labels, ""], pieces=True, width=15)
            check(decoder.decode_beams(logits, 15), reference.decode(logits.astype(np.float64), settings))

    @pytest.mark.parametrize("model", [True, False])
    def test_hot_words_and_phrases(self, text: Path, backoff: snm.BackoffModel, model: bool) -> None:
        hot = {"bed": 6.0, "pat": 2.0, "a nan has": 5.0, "nan hat": 4.0, "under a bed": 7.0, "under": -1.0, "zzz": 3.0}
        decoder = build_ctcdecoder(LABELS, backoff if model else None)
        for _, logits in sentences(text, 5):
            settings = oracle_of(backoff if model else None, width=20, hot=hot)
            expected = reference.decode(logits.astype(np.float64), settings)
            check(decoder.decode_beams(logits, 20, hotwords=hot), expected)

    def test_a_closed_lexicon(self, text: Path, backoff: snm.BackoffModel) -> None:
        decoder = build_ctcdecoder(LABELS, backoff, lexicon="closed")
        words = known_words(backoff)
        for _, logits in sentences(text, 5, 0.1):
            found = decoder.decode_beams(logits, 20)
            assert set(found[0].text.split()) <= words
            settings = oracle_of(backoff, width=20, closed=True)
            try:
                expected = reference.decode(logits.astype(np.float64), settings)
            except ValueError:  # no hypothesis is left: ours goes on as if the frame were blank
                continue
            check(found, expected)

    def test_a_token_level_model(self, tmp_path: Path, text: Path) -> None:
        random = np.random.default_rng(4)
        lines = text.read_text().split("\n")[:300]
        labels = piece_labels(" ".join(lines).split(), 60)
        tokens = tmp_path / "tokens.txt"
        tokens.write_text("\n".join(" ".join(p for w in line.split() for p in pieces_of(w, labels)) for line in lines))
        model: Any = train([tokens], tmp_path / "tokens.model", Settings(model="kn", order=3, threads=1))
        decoder = build_ctcdecoder(labels, model, level="token", beta=0.3)
        for line in lines[:3]:
            logits = piece_logits_of(line, labels, 0.2, random)
            settings = oracle_of(model, labels=[*labels, ""], by_token=True, width=10, beta=0.3, hot={"at noon": 3.0})
            expected = reference.decode(logits.astype(np.float64), settings)
            found = decoder.decode_beams(logits, 10, hotwords={"at noon": 3.0})
            best = found[0].lm_score
            assert best == pytest.approx(expected[0][2], abs=1e-4)
            assert decoder.decode(logits, 10) == expected[0][0].strip()

    def test_larger_arrays_change_nothing(self, text: Path, backoff: snm.BackoffModel) -> None:
        """A search that begins with little room, so that it forgets and grows all the time."""
        from snm.decoding import search

        decoder = build_ctcdecoder(LABELS, backoff)
        ((_, logits),) = sentences(text, 1, 0.5)
        expected = decoder.decode_beams(logits, 40, token_min_logp=-20.0)
        rows = np.log(np.clip(np.exp(logits.astype(np.float64)), 1e-15, 1))
        task = decoder._task(40, -10.0, -20.0, False, None, 10.0)
        small = search.make_arrays(40, len(LABELS), decoder._scores.width)  # type: ignore[union-attr]
        small = small._replace(
            words=small.words[:45], states=small.states[:45], pending=small.pending[:45], children=small.children[:128],
            pieces=small.pieces[:50], spans=small.spans[:50], candidates=small.candidates[:60],
            order=small.order[:, :60].copy(),
        )  # fmt: skip
        one = search.BeamSearch(task, small)
        one.feed(rows)
        found = [one.beam(result, [], []) for result in one.finish()]
        assert [beam[0] for beam in found[:20]] == [beam[0] for beam in expected[:20]]
        assert [beam.text_frames for beam in found[:5]] == [beam.text_frames for beam in expected[:5]]
        assert [beam[4] for beam in found] == pytest.approx([beam[4] for beam in expected], abs=1e-5)


class TestResults:
    def test_scores_frames_and_states(self, text: Path, backoff: snm.BackoffModel) -> None:
        decoder = build_ctcdecoder(LABELS, backoff, alpha=0.6, beta=1.0)
        for line, logits in sentences(text, 4, 0.02):
            best, *_ = decoder.decode_beams(logits)
            assert best.text == line == decoder.decode(logits)
            n = len(line.split())
            words = backoff.score(line) * math.log(10) * 0.6 + 1.0 * n
            assert best.language_score == pytest.approx(words, abs=1e-4)
            frames = [frame for _, span in best.text_frames for frame in span]
            assert frames == sorted(frames)
            assert 0 <= frames[0] < frames[-1] <= len(logits)
            assert best.last_lm_state is not None
            assert backoff.step(best.last_lm_state, "</s>")[0] < 0

    def test_a_text_in_two_parts(self, text: Path, backoff: snm.BackoffModel) -> None:
        """The second part goes on from the state of the first."""
        decoder = build_ctcdecoder(LABELS, backoff, lm_score_boundary=False)
        (_, first), (_, second) = sentences(text, 2, 0.02)
        state = decoder.decode_beams(first)[0].last_lm_state
        alone, after = decoder.decode_beams(second)[0], decoder.decode_beams(second, lm_start_state=state)[0]
        assert alone.text == after.text
        assert alone.lm_score != after.lm_score

    def test_confidences(self, text: Path, backoff: snm.BackoffModel) -> None:
        decoder = build_ctcdecoder(LABELS, backoff)
        clear, noisy = (decoder.decode_beams(sentences(text, 1, noise)[0][1]) for noise in (0.0, 0.8))
        sure, unsure = (np.mean([p for _, p in confidences(beams)]) for beams in (clear, noisy))
        assert unsure < sure <= 1.0
        assert [word for word, _ in confidences(noisy)] == noisy[0].text.split()
        with pytest.raises(SettingsError, match="no beams"):
            confidences([])

    def test_probabilities_logits_and_log_probabilities_are_one(self, text: Path, backoff: snm.BackoffModel) -> None:
        decoder = build_ctcdecoder(LABELS, backoff)
        logs = sentences(text, 1)[0][1].astype(np.float64)
        texts = {decoder.decode(given) for given in (logs, np.exp(logs), logs + 3.0, logs.tolist(), logs.astype("f4"))}
        assert len(texts) == 1

    def test_batches_and_threads(self, text: Path, skips: snm.SnmModel) -> None:
        decoder = build_ctcdecoder(LABELS, skips)
        given = [logits for _, logits in sentences(text, 12)]
        expected = [decoder.decode(logits) for logits in given]
        assert decoder.decode_batch(None, given, threads=3) == expected
        assert [beams[0].text for beams in decoder.decode_beams_batch(None, given, prune_history=True)] == expected
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(decoder.decode, given)) == expected
        assert decoder.decode_batch(None, []) == []

    def test_no_frames_and_only_blanks(self, backoff: snm.BackoffModel) -> None:
        decoder = build_ctcdecoder(LABELS, backoff)
        assert decoder.decode(np.zeros((0, len(LABELS)))) == ""
        blanks = np.full((5, len(LABELS)), -50.0)
        blanks[:, 0] = 0.0
        assert [beam.text for beam in decoder.decode_beams(blanks)] == [""]

    def test_a_closed_lexicon_with_an_impossible_frame(self, backoff: snm.BackoffModel) -> None:
        decoder = build_ctcdecoder(LABELS, backoff, lexicon="closed")
        logits = np.full((6, len(LABELS)), -30.0)
        for frame, letter in enumerate("paqq t"):
            logits[frame, LABELS.index(letter)] = 0.0
        assert set(decoder.decode(logits).split()) <= known_words(backoff)

    def test_a_mixture(self, text: Path, backoff: snm.BackoffModel, skips: snm.SnmModel) -> None:
        mixed = snm.mix([backoff.path, skips.path], text, text.parent / "mixed.model", force=True)
        decoder = build_ctcdecoder(LABELS, mixed)
        assert [decoder.decode(logits) for _, logits in sentences(text, 3, 0.02)] == [
            line for line, _ in sentences(text, 3, 0.02)
        ]

    def test_an_arpa_file_and_a_pickle(self, text: Path, backoff: snm.BackoffModel) -> None:
        path = text.parent / "kn.arpa"
        snm.export_arpa(backoff, path)
        decoder = build_ctcdecoder(LABELS, str(path), alpha=0.7)
        copy: Decoder = pickle.loads(pickle.dumps(build_ctcdecoder(LABELS, backoff, alpha=0.7)))
        assert copy.alpha == 0.7
        for _, logits in sentences(text, 3):
            theirs, ours = decoder.decode_beams(logits, 10), copy.decode_beams(logits, 10)
            assert [beam.text for beam in theirs] == [beam.text for beam in ours]
            assert theirs[0].lm_score == pytest.approx(ours[0].lm_score, abs=1e-3)

    def test_weights_change(self, text: Path, backoff: snm.BackoffModel) -> None:
        decoder = build_ctcdecoder(LABELS, backoff)
        logits = sentences(text, 1, 0.5)[0][1]
        before = decoder.decode_beams(logits)[0].lm_score
        decoder.reset_params(alpha=2.0, beta=0.0)
        assert decoder.decode_beams(logits)[0].lm_score != before
        assert (decoder.alpha, decoder.beta, decoder.unk_score_offset) == (2.0, 0.0, -10.0)

    def test_the_empty_last_word_of_pyctcdecode(self, text: Path, backoff: snm.BackoffModel) -> None:
        logits = 20.0 * np.eye(len(LABELS))[[LABELS.index(letter) for letter in "the man has pat "]]
        ours = build_ctcdecoder(LABELS, backoff).decode_beams(logits)[0]
        theirs = build_ctcdecoder(LABELS, backoff, compatible=True).decode_beams(logits)[0]
        assert ours.text == "the man has pat"
        assert theirs.lm_score < ours.lm_score - 5


class TestHotWords:
    def test_an_unknown_hot_word_is_found(self, backoff: snm.BackoffModel) -> None:
        logits = 8.0 * np.eye(len(LABELS))[[LABELS.index(letter) for letter in "the zyx has pat"]]
        decoder = build_ctcdecoder(LABELS, backoff)
        assert decoder.decode(logits, hotwords=["zyx"], hotword_weight=20.0) == "the zyx has pat"
        assert decoder.decode_beams(logits, hotwords=["zyx"], hotword_weight=20.0)[0].lm_score > (
            decoder.decode_beams(logits, hotwords=["zyx"])[0].lm_score + 9.0
        )

    def test_a_list_is_taken_word_by_word(self, text: Path, backoff: snm.BackoffModel) -> None:
        decoder = build_ctcdecoder(LABELS, backoff)
        logits = sentences(text, 1)[0][1]
        listed = decoder.decode_beams(logits, hotwords=[" her mister ", "", "bed"], hotword_weight=3.0)
        assert listed == decoder.decode_beams(logits, hotwords={"her": 3.0, "mister": 3.0, "bed": 3.0})

    def test_many_hot_words(self, text: Path, backoff: snm.BackoffModel) -> None:
        random = np.random.default_rng(2)
        hot = ["".join(random.choice(list("abcdefgh"), 8)) for _ in range(1000)]
        decoder = build_ctcdecoder(LABELS, backoff)
        for line, logits in sentences(text, 3, 0.02):
            assert decoder.decode(logits, hotwords=hot) == line


class TestLabels:
    @pytest.mark.parametrize(
        ("labels", "expected", "blank"),
        [
            (["a", " ", ""], ["a", " ", ""], None),
            (["<pad>", "a", "|"], ["", "a", " "], None),
            (["[PAD]", "[UNK]", "a", " "], ["", "⁇", "a", " "], None),
            (["a", " ", "_"], ["a", " ", ""], None),
            (["a", " "], ["a", " ", ""], None),
            (["a", "~", " "], ["a", "", " "], "~"),
            (["a", "~", " "], ["a", "", " "], 1),
            (["▁a", "b", "<unk>"], ["▁a", "b", "▁⁇▁", ""], None),
            (["a", "##b", "[UNK]", ""], ["▁a", "b", "▁⁇▁", ""], None),
        ],
    )
    def test_conventions(self, labels: list[str], expected: list[str], blank: Any) -> None:
        assert build_ctcdecoder(labels, blank=blank).labels == expected

    def test_the_blank_may_be_anywhere(self, text: Path, backoff: snm.BackoffModel) -> None:
        order = [*range(1, 12), 0, *range(12, len(LABELS))]
        given = [LABELS[i] for i in order]
        for _, logits in sentences(text, 3):
            ours = build_ctcdecoder(given, backoff).decode(logits[:, order])
            assert ours == build_ctcdecoder(LABELS, backoff).decode(logits)

    def test_a_piece_that_closes_its_word(self) -> None:
        decoder = build_ctcdecoder(["▁⁇▁", "▁a", "b", ""])
        logits = np.full((4, 4), -30.0)
        for frame, label in enumerate([1, 0, 2, 2]):
            logits[frame, label] = 0.0
        assert decoder.decode(logits) == "a ⁇ b"


class TestErrors:
    @pytest.mark.parametrize(
        ("logits", "message"),
        [
            (np.zeros(5), "1 dimensions"),
            (np.zeros((2, 3, 28)), "decode_batch"),
            (np.zeros((4, 20)), "columns; expected 28"),
            (np.zeros((28, 20)), "turn the array"),
            (np.full((3, 28), np.nan), "frame 0 is nan"),
            (np.array([[0.0] * 27 + [np.inf]]), "inf; expected finite"),
            (np.full((3, 28), -np.inf), "minus infinity for every label"),
            ([[1.0], [1.0, 2.0]], "expected a NumPy array"),
            (np.full((3, 28), "a"), "expected numbers"),
            (None, "dimensions"),
        ],
    )
    def test_logits(self, logits: Any, message: str) -> None:
        decoder = build_ctcdecoder(LABELS[:28])
        with pytest.raises(InputError, match=message) as error:
            decoder.decode(logits)
        assert "\n" not in str(error.value)
        with pytest.raises(InputError):
            decoder.decode_batch(None, [np.zeros((3, 28)), logits])
        with pytest.raises(InputError):
            decoder.stream().feed(logits)

    def test_an_added_blank_is_explained(self) -> None:
        with pytest.raises(InputError, match="the last one a blank that was added"):
            build_ctcdecoder(["a", "b", " "]).decode(np.zeros((2, 3)))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((["a", "a"],), "there twice"),
            ((["▁a", " "],), "has a space"),
            (("abc",), "expected a list"),
            (([],), "no element"),
            (([1, 2],), "expected strings"),
            ((["a", "", "<pad>"],), "several labels are the blank"),
            ((LABELS, 3), "expected a path"),
        ],
    )
    def test_labels(self, arguments: tuple[Any, ...], message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            build_ctcdecoder(*arguments)

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"blank": "~"}, "no label"),
            ({"blank": 99}, "expected 28 or less"),
            ({"unigrams": "abc"}, "expected a list"),
            ({"unigrams": ["nowhere"]}, "none of the unigrams"),
            ({"alpha": "a"}, "alpha"),
            ({"beta": math.nan}, "finite"),
            ({"lexicon": "half"}, "open, closed"),
            ({"level": "token"}, "none of the labels"),
            ({"level": "token", "lexicon": "closed"}, "level='token' needs"),
            ({"lm_score_boundary": 1}, "True or False"),
        ],
    )
    def test_settings(self, backoff: snm.BackoffModel, more: dict[str, Any], message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            build_ctcdecoder(LABELS if more.get("level") is None else ["▁x", "y", ""], backoff, **more)

    def test_other_arguments(self, text: Path, backoff: snm.BackoffModel) -> None:
        decoder: Any = build_ctcdecoder(LABELS, backoff)
        logits = sentences(text, 1)[0][1]
        calls: list[Any] = [
            lambda: decoder.decode(logits, beam_width=0),
            lambda: decoder.decode(logits, beam_prune_logp=1.0),
            lambda: decoder.decode(logits, hotwords="abc"),
            lambda: decoder.decode(logits, hotwords=[1]),
            lambda: decoder.decode(logits, hotwords={"a": "b"}),
            lambda: decoder.decode(logits, lm_start_state=b"abc"),
            lambda: decoder.decode(logits, lm_start_state=3),
            lambda: decoder.decode_beams(logits, prune_history=3),
            lambda: decoder.decode_batch(None, logits, threads=0),
            lambda: decoder.decode_batch(None, 3),
            lambda: build_ctcdecoder(LABELS, lexicon="closed"),
            lambda: build_ctcdecoder([letter.upper() for letter in LABELS], backoff),
        ]
        for call in calls:
            with pytest.raises(SnmError) as error:
                call()
            assert "\n" not in str(error.value)
