"""Tests of spelling: a probability for every string."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import snm
from snm.errors import FormatError, SettingsError
from snm.evaluation import verify
from snm.model import bits_per_byte
from snm.reference.spelling import BOUNDARY, SYMBOLS, ByteModel
from snm.settings import Settings
from snm.storage import sealed
from snm.text import spelling as module
from snm.text.encoding import encode_files, read_corpus
from snm.text.spelling import RareWords, Spelling, spans_of, words_to_learn
from snm.text.vocabulary import Vocabulary
from tests.conftest import train

WORDS = [
    "anna",
    "banana",
    "bandana",
    "nab",
    "band",
    "Straße",
    "größe",
    "größer",
    "数学",
    "数",
    "a",
    "b",
    "ab",
    "z" * 10,
]
SETTINGS = Settings(features="ngram(0..2)", min_count=3, gate=0, threads=1)


def lines_of(words: list[str]) -> bytes:
    return b"".join(word.encode() + b"\n" for word in words)


def probabilities(spelling: Spelling, words: list[str]) -> np.ndarray:
    lines = lines_of(words)
    found: np.ndarray = np.exp(spelling.log_probabilities(lines, spans_of(lines)[1]))
    return found


def close(found: np.ndarray, expected: list[float], rel: float = 1e-5) -> bool:
    return bool(np.allclose(np.log(found), np.log(expected), rtol=rel, atol=rel))


@pytest.mark.parametrize("order", [2, 3, 6, 7])
def test_strings_have_the_probabilities_of_the_reference(order: int) -> None:
    reference = ByteModel([word.encode() for word in WORDS], order)
    asked = [*WORDS, "ban", "q", "x" * 20, "数理", "größtes", "né"]
    assert close(
        probabilities(Spelling(lines_of(WORDS), 0.0, order), asked), [reference.word(word.encode()) for word in asked]
    )


@given(
    st.lists(st.text("abä", min_size=1, max_size=6), min_size=1, max_size=12),
    st.text("abäz", min_size=1, max_size=8),
    st.integers(2, 7),
)
def test_any_word_list_gives_the_probabilities_of_the_reference(words: list[str], asked: str, order: int) -> None:
    reference = ByteModel([word.encode() for word in words], order)
    found = probabilities(Spelling(lines_of(words), 0.0, order), [asked])
    assert close(found, [reference.word(asked.encode())])


@given(st.lists(st.text("abä", min_size=1, max_size=6), min_size=1, max_size=12), st.text("abäz", max_size=8))
def test_the_reference_sums_to_one(words: list[str], prefix: str) -> None:
    reference = ByteModel([word.encode() for word in words], 4)
    context = BOUNDARY, *prefix.encode()
    assert sum(reference.symbol(symbol, context) for symbol in SYMBOLS) == pytest.approx(1)


def test_strings_outside_the_vocabulary_sum_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an alphabet of two letters and words that end soon, a few lengths have nearly all strings."""
    monkeypatch.setattr(module, "SYMBOLS", np.array([97, 98, BOUNDARY]))
    words = ["a", "b", "ab", "ba", "aa", "bb", "a", "b", "abb"]
    vocabulary = Vocabulary(["a", "bb", "aba"])
    spelling = Spelling.learn(lines_of(words), vocabulary)
    strings = ["".join(s) for n in range(1, 15) for s in itertools.product("ab", repeat=n)]
    assert 0.2 < spelling.known < 0.9
    unknown = [word for word in strings if word not in vocabulary.words]
    assert probabilities(spelling, unknown).sum() == pytest.approx(1, abs=2e-3)
    assert probabilities(Spelling(lines_of(words), 0.0), strings).sum() == pytest.approx(1, abs=2e-3)


def test_a_hidden_word_is_any_string() -> None:
    spelling = Spelling(lines_of(WORDS), 0.25)
    found = spelling.log_probabilities(b"band", np.array([-1, -1, 0, 4]))
    assert found[0] == 0
    whole = Spelling(lines_of(WORDS), 0.0).log_probabilities(b"band", np.array([0, 4]))
    assert found[1] == pytest.approx(whole[0] - math.log(0.75))


def test_rare_words_are_those_with_the_smallest_hashes_however_they_come(tmp_path: Path) -> None:
    """A corpus read by one thread or two, and with its vocabulary given, has the same rare words."""
    path = tmp_path / "text"
    path.write_text("\n".join(f"the cat w{i} <unk> sees {'w' * (i % 7)} w{i // 2}" for i in range(300)))
    found = []
    for threads in (1, 2):
        rare = RareWords(100)
        _, vocabulary = read_corpus([path], min_count=4, threads=threads, rare=rare)
        found.append(rare.lines)
    given_one = RareWords(100)
    encode_files([path], vocabulary, rare=given_one)
    assert found[0] == found[1] == given_one.lines
    words = found[0].decode().split("\n")[:-1]
    assert len(set(words)) == 100
    assert not set(words) & {*vocabulary.words, "<unk>"}
    cut = RareWords()
    read_corpus([path], min_count=1, max_words=2, rare=cut)
    assert {"the", "w7"} <= set(cut.lines.decode().split())


def test_few_rare_words_are_joined_by_the_rarest_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_WORDS", 3)
    monkeypatch.setattr(module, "MAX_WORDS", 4)
    vocabulary, counts = Vocabulary(["often", "seldom", "once"]), np.array([0, 9, 9, 8, 3, 1])
    assert words_to_learn(b"x\ny\n", counts, vocabulary) == b"x\ny\nonce\nseldom\n"
    assert words_to_learn(b"x\ny\nz\n", counts, vocabulary) == b"x\ny\nz\n"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spelling") / "text"
    rare = ["walking", "talking", "walked", "talked", "Münchner", "Münster", "jumping", "jumped"]
    path.write_text("\n".join(f"the cat sees the {rare[i % 8]}{'er' * (i // 8 % 5)} cat" for i in range(200)) + "\n")
    return path


@pytest.fixture(scope="module")
def model(text: Path, tmp_path_factory: pytest.TempPathFactory) -> snm.LanguageModel:
    return train([text], tmp_path_factory.mktemp("model") / "model", Settings(**{**vars(SETTINGS), "min_count": 6}))


def test_a_word_has_the_probability_of_the_unknown_word_times_its_spelling(model: snm.LanguageModel) -> None:
    assert model.spelling is not None
    (plain,), (spelled,) = (model.score_words(["the walker sees <unk> cat"], spelled=s) for s in (False, True))
    (log_p,) = np.log10(probabilities(model.spelling, ["walker"]))
    assert [b - a for (_, a), (_, b) in zip(plain, spelled, strict=True)] == pytest.approx([0, log_p, 0, 0, 0, 0])
    assert model.score("the walker", spelled=True) < model.score("the walker")
    assert model.score("the walker", spelled=True) > model.score("the xqzvwk", spelled=True)
    assert model.score("the walker") == model.score("the xqzvwk")


def test_the_report_has_both_perplexities(model: snm.LanguageModel) -> None:
    lines = ["the walker sees the cat", "", "  the\tcat <s> "]
    report = model.perplexity(lines)
    spelled = sum(s for s in model.score_sentences(lines, spelled=True) if not math.isnan(s))
    plain = sum(s for s in model.score_sentences(lines) if not math.isnan(s))
    assert report.logprob10 == pytest.approx(plain)
    assert report.ppl == pytest.approx(10 ** (-plain / 9))
    assert report.ppl_spelled == pytest.approx(10 ** (-spelled / 9))
    assert report.bytes == len(b"the walker sees the cat\nthe cat\n")
    assert report.bits_per_byte == pytest.approx(-spelled * math.log2(10) / report.bytes)
    assert bits_per_byte(-1.0, 0) is None


def test_text_without_unknown_words_needs_no_spelling_model(model: snm.LanguageModel) -> None:
    text = encode_files(iter(["the cat", "the walker"]), model.vocabulary)
    assert model.perplexity(text).ppl_spelled is None
    known = model.perplexity(encode_files(iter(["the cat"]), model.vocabulary))
    assert known.ppl_spelled == pytest.approx(known.ppl)


def test_a_model_without_a_spelling_model_says_so(model: snm.LanguageModel, tmp_path: Path) -> None:
    arpa = tmp_path / "model.arpa"
    arpa.write_text("\\data\\\nngram 1=4\n\n\\1-grams:\n-1 <unk>\n-9 <s>\n-1 </s>\n-1 cat\n\n\\end\\\n")
    with snm.load(arpa) as imported:
        report = imported.perplexity(["cat dog"])
        assert (report.ppl_spelled, report.bits_per_byte, report.bytes) == (None, None, 8)
        assert imported.perplexity(["cat cat"]).ppl_spelled == pytest.approx(10)
        with pytest.raises(SettingsError, match="has no spelling model"):
            imported.score("cat dog", spelled=True)


def test_a_closed_vocabulary_spells_nothing(text: Path, tmp_path: Path) -> None:
    closed = train([text], tmp_path / "closed", Settings(**{**vars(SETTINGS), "min_count": 6, "closed": True}))
    assert closed.spelling is None
    assert not (tmp_path / "closed" / "spelling.txt").exists()
    assert closed.score("the walker", spelled=True) == closed.score("the walker")


def test_models_of_all_settings_spell_alike(model: snm.LanguageModel, text: Path, tmp_path: Path) -> None:
    """A given vocabulary, Kneser-Ney, and a mixture of models whose vocabularies have other orders."""
    assert model.spelling is not None
    vocab = tmp_path / "vocab"
    vocab.write_text("\n".join(reversed(model.vocabulary.words[3:])))
    other = train([text], tmp_path / "kn", Settings(model="kn", order=3, vocab=vocab, threads=1))
    assert other.spelling is not None
    assert sorted(other.spelling.words.split()) == sorted(model.spelling.words.split())
    assert other.spelling.known == pytest.approx(model.spelling.known)
    mixture = snm.mix([model, other], [text], tmp_path / "mix")
    assert mixture.spelling is not None
    expected = probabilities(model.spelling, ["walker"])
    assert probabilities(mixture.spelling, ["walker"]) == pytest.approx(expected)
    assert mixture.score("the walker", spelled=True) < mixture.score("the walker")
    verify(tmp_path / "mix", contexts=5)


def test_resuming_keeps_the_rare_words(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(**{**vars(SETTINGS), "min_count": 6, "resume": True})
    with monkeypatch.context() as patch:
        patch.setattr("snm.pipeline.finish_snm", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train([text], tmp_path / "model", settings)
    again = train([text], tmp_path / "model", settings)
    assert again.spelling is not None
    straight = train([text], tmp_path / "other", Settings(**{**vars(SETTINGS), "min_count": 6}))
    assert straight.spelling is not None
    assert again.spelling.words == straight.spelling.words


def test_a_damaged_spelling_model_is_found(model: snm.LanguageModel, tmp_path: Path) -> None:
    def changed(**entries: object) -> Path:
        path = tmp_path / "damaged"
        path.mkdir(exist_ok=True)
        for file in model.path.iterdir():
            (path / file.name).write_bytes(file.read_bytes())
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["spelling"] |= entries
        (path / "manifest.json").write_bytes(sealed(manifest))
        return path

    for entries in ({"order": 9}, {"words": 7}, {"known": "no"}, {"known": 1.0}):
        with pytest.raises(FormatError, match=r"damaged|expected"):
            snm.load(changed(**entries))
    with pytest.raises(FormatError, match="not that of this vocabulary"):
        verify(changed(known=0.001), contexts=2)
    (changed() / "spelling.txt").unlink()
    with pytest.raises(FormatError, match=r"spelling.txt is missing"):
        snm.load(tmp_path / "damaged")
