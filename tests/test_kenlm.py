"""snm.kenlm beside the package kenlm: the same numbers, states, names and exceptions."""

from __future__ import annotations

import copy
import math
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import snm
import snm.kenlm as ours
from snm.errors import SnmError
from snm.kenlm.engines import is_binary, real_kenlm
from snm.settings import Settings
from tests.conftest import SMALL_SKIPS, train, write_bigrams

kenlm = pytest.importorskip("kenlm", reason="needs the package kenlm")

GOLDEN = Path(__file__).parent / "golden" / "kneser-ney.arpa"
ODD_ARPA = """\\data\\
ngram 1=6
ngram 2=5
ngram 3=2

\\1-grams:
-99\t<s>\t-0.3
-1.2\t</s>
-0.9\ta\t-0.25
-1.1\tb\t-0.5
-99\tc
-1.3\td

\\2-grams:
-0.4\t<s> a\t-0.125
-0.5\ta b\t0
-0.7\tb b
-0.2\tb </s>
-0.6\ta a

\\3-grams:
-0.3\t<s> a b
-0.35\ta b </s>

\\end\\
"""  # no <unk>, a word of probability 0, words that begin nothing


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bigrams(tmp_path_factory.mktemp("kenlm") / "text.txt", 3, 1500, 120, 3)


@pytest.fixture(scope="module", params=["trained", "golden", "odd"])
def arpa(request: pytest.FixtureRequest, corpus: Path) -> Path:
    """An ARPA file: of a model of SNM, of the golden one, and one with what other toolkits write."""
    path = corpus.parent / f"{request.param}.arpa"
    if request.param == "golden":
        return GOLDEN
    if request.param == "odd":
        path.write_text(ODD_ARPA)
    elif not path.exists():
        model = train([corpus], corpus.parent / "kn.model", Settings(model="kn", order=4, threads=1))
        snm.export_arpa(model, path)
    return path


@pytest.fixture(scope="module")
def pair(arpa: Path) -> tuple[Any, ours.Model]:
    """The model of the package kenlm, and ours."""
    return _quiet(arpa), ours.Model(str(arpa))


def _quiet(path: Path, module: Any = kenlm) -> Any:
    config = module.Config()
    config.show_progress, config.arpa_complain = False, module.ARPALoadComplain.NONE
    return module.Model(str(path), config)


def _sentences(model: ours.Model, n: int) -> Iterator[str]:
    """Random sentences of known and unknown words and of markers."""
    chosen = random.Random(5)
    vocabulary = [*model.snm_model.vocabulary.words[3:80], "<unk>", "<UNK>", "</s>", "<s>", "unheard", "naïve", "<S>"]
    for _ in range(n):
        yield " ".join(chosen.choices(vocabulary, k=chosen.randrange(12)))


def test_scores_are_those_of_kenlm(pair: tuple[Any, ours.Model]) -> None:
    theirs, model = pair
    assert model.order == theirs.order
    for sentence in _sentences(model, 100):
        assert model.score(sentence) == pytest.approx(theirs.score(sentence), abs=1e-5, rel=1e-6)
        assert math.log10(model.perplexity(sentence)) == pytest.approx(
            math.log10(theirs.perplexity(sentence)), abs=1e-5
        )
        for bos in (True, False):
            for eos in (True, False):
                assert model.score(sentence, bos, eos) == pytest.approx(
                    theirs.score(sentence, bos=bos, eos=eos), abs=1e-5, rel=1e-6
                )
                found, expected = list(model.full_scores(sentence, bos, eos)), theirs.full_scores(sentence, bos, eos)
                for (p, length, oov), (their_p, their_length, their_oov) in zip(found, expected, strict=True):
                    assert p == pytest.approx(their_p, abs=1e-5)
                    assert (length, oov) == (their_length, bool(their_oov))


def test_words_and_states_are_those_of_kenlm(pair: tuple[Any, ours.Model]) -> None:
    """Scores after states, and which states are equal: as many histories share a state as in KenLM."""
    theirs, model = pair
    has_unknown = not model.snm_model.vocabulary.closed  # without it KenLM's states keep unknown words for nothing
    ends: list[tuple[Any, ours.State]] = []
    for i, sentence in enumerate(_sentences(model, 60)):
        states = kenlm.State(), kenlm.State(), ours.State(), ours.State()
        for one, state in ((theirs, states[0]), (model, states[2])):
            (one.NullContextWrite if i % 2 else one.BeginSentenceWrite)(state)
        before, after, our_before, our_after = states
        for word in [*sentence.split(), "", "two words"]:
            expected = theirs.BaseFullScore(before, word, after)
            found = model.BaseFullScore(our_before, word, our_after)
            assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-5)
            assert (found.ngram_length, found.oov) == (expected.ngram_length, bool(expected.oov))
            again = ours.State()
            assert model.BaseScore(our_before, word, again) == found.log_prob
            assert again == our_after
            before, after, our_before, our_after = after, before, our_after, our_before
            ends.append((copy.copy(before), copy.copy(our_before)))
    for a, our_a in ends[::7]:
        for b, our_b in ends:
            assert (our_a == our_b, our_a != our_b) == (hash(our_a) == hash(our_b), our_a._value != our_b._value)
            assert our_a == our_b if a == b else our_a != our_b or not has_unknown
    for word in [*model.snm_model.vocabulary.words, "<s>", "</s>", "<unk>", "unheard", ""]:
        assert (word in model) == (word in theirs)
        assert (word.encode() in model) == (word in theirs)


def test_sentences_as_bytes_and_odd_ones(pair: tuple[Any, ours.Model]) -> None:
    theirs, model = pair
    known = model.snm_model.vocabulary.words[3]
    for sentence in ("", "   ", f" {known}\t{known}\v{known} ", f"{known}\u00a0{known}", known.encode(), b"\xff " * 3):
        assert model.score(sentence) == pytest.approx(theirs.score(sentence), abs=1e-5, rel=1e-6)
        assert math.log10(model.perplexity(sentence)) == pytest.approx(
            math.log10(theirs.perplexity(sentence)), abs=1e-5
        )
        assert len(list(model.full_scores(sentence))) == len(list(theirs.full_scores(sentence)))


def _raised(call: Callable[[], Any]) -> type[BaseException]:
    with pytest.raises(Exception) as found:  # noqa: PT011
        call()
    return found.type


def test_exceptions_are_those_of_kenlm(pair: tuple[Any, ours.Model], tmp_path: Path) -> None:
    missing, broken = tmp_path / "missing.arpa", tmp_path / "broken.arpa"
    broken.write_text("no model\n")
    module: Any
    for module, model in ((kenlm, pair[0]), (ours, pair[1])):
        state, other = module.State(), module.State()
        model.BeginSentenceWrite(state)
        calls: tuple[Any, ...] = (
            lambda m=model: m.score(3), lambda m=model: m.score(None), lambda m=model: 3 in m,
            lambda m=model: list(m.full_scores(3)), lambda m=model: m.perplexity(None),
            lambda m=model, s=state, o=other: m.BaseScore(s, b"the", o),
            lambda m=model, s=state, o=other: m.BaseScore(s, 3, o), lambda m=model, s=state: m.BaseScore(s, "the", 3),
            lambda m=model, o=other: m.BaseScore("state", "the", o),
            lambda m=model, s=state, o=other: m.BaseFullScore(s, b"the", o),
            lambda m=model: m.BeginSentenceWrite(3), lambda m=model: m.NullContextWrite("state"),
            lambda s=state: s == "state", lambda s=state: s < 3, lambda k=module: k.Model(3),
            lambda k=module: k.Model(),
            lambda k=module: k.Model("x", 3), lambda k=module: k.Config(3),
            lambda k=module: setattr(k.Config(), "load_method", "LAZY"),
            lambda k=module: k.FullScoreReturn("a", 1, True),
        )  # fmt: skip
        for call in calls:
            assert _raised(call) is TypeError
        assert state != None  # noqa: E711
        assert issubclass(_raised(partial(model.score, "a \ud800")), UnicodeEncodeError)
        for name in (missing, broken):
            with pytest.raises(OSError, match=f"Cannot read model '{name}' \\("):
                _quiet(name, module)
    with pytest.raises(SnmError):
        ours.Model(str(missing))


def test_names_and_values_are_those_of_kenlm(pair: tuple[Any, ours.Model]) -> None:
    def public(value: Any) -> set[str]:
        return {name for name in dir(value) if not name.startswith("_")}

    theirs, model = pair
    assert public(kenlm) <= public(ours)
    assert public(theirs) <= public(model)
    for name in ("Config", "LoadMethod", "ARPALoadComplain", "State", "FullScoreReturn"):
        assert public(getattr(kenlm, name)) <= public(getattr(ours, name))
    for name in ("LoadMethod", "ARPALoadComplain"):
        for value in public(getattr(kenlm, name)):
            assert getattr(getattr(kenlm, name), value) == getattr(getattr(ours, name), value)
    for value in public(kenlm.Config()):
        assert getattr(kenlm.Config(), value) == getattr(ours.Config(), value)
    assert repr(model) == repr(theirs)
    assert model.path == theirs.path
    assert repr(ours.FullScoreReturn(-1.5, 2, True)) == repr(kenlm.FullScoreReturn(-1.5, 2, True))


def test_pickles_and_copies(pair: tuple[Any, ours.Model]) -> None:
    """Models are pickled by path, as KenLM's; states can be pickled and deeply copied too."""
    theirs, model = pair
    for one in (theirs, model):
        for copied in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
            assert copied.path == one.path
            assert copied.score("a b </s> c") == one.score("a b </s> c")
    state, after = ours.State(), ours.State()
    model.BeginSentenceWrite(state)
    model.BaseScore(state, "a", after)
    for copied in (copy.copy(after), copy.deepcopy(after), pickle.loads(pickle.dumps(after))):
        assert copied == after
        assert hash(copied) == hash(after)
        assert model.BaseScore(copied, "b", ours.State()) == model.BaseScore(after, "b", ours.State())
        model.NullContextWrite(copied)
        assert copied == ours.State() != state
    older = ours.LanguageModel(str(model.path, "utf8"))
    assert isinstance(older, ours.Model)
    assert isinstance(pickle.loads(pickle.dumps(older)), ours.LanguageModel)


def test_states_are_ordered(pair: tuple[Any, ours.Model]) -> None:
    _, model = pair
    states = []
    for sentence in _sentences(model, 40):
        state = ours.State()
        model.BeginSentenceWrite(state)
        for word in sentence.split():
            after = ours.State()
            model.BaseScore(state, word, after)
            state = after
        states.append(state)
    for a in states:
        for b in states:
            assert (a < b) + (a == b) + (a > b) == 1
            assert (a <= b, a >= b) == (not a > b, not a < b)
    ordered = sorted(states)
    assert all(a <= b for a, b in pairwise(ordered))


@pytest.fixture(scope="module")
def folder(corpus: Path) -> Path:
    path = corpus.parent / "small.model"
    train([corpus], path, Settings(features=SMALL_SKIPS, threads=1))
    return path


@pytest.fixture(scope="module", params=["snm", "kn", "mixture"])
def model(request: pytest.FixtureRequest, folder: Path, corpus: Path) -> ours.Model:
    backoff = corpus.parent / "kn-beside.model"
    if request.param == "snm":
        return ours.Model(folder.as_posix())
    if not backoff.exists():
        train([corpus], backoff, Settings(model="kn", order=3, threads=1))
    if request.param == "kn":
        return ours.Model(backoff.as_posix())
    mixed = corpus.parent / "mixed.model"
    snm.mix([folder, backoff], [corpus], mixed)
    return ours.Model(mixed.as_posix())


class TestSnm:
    """Models of SNM: the numbers of their own interface."""

    def test_scores(self, model: ours.Model) -> None:
        inner = model.snm_model
        for sentence in ("w1 w2 w3", "w5 unheard w7 w7", "w9"):
            (words,) = inner.score_words([sentence])
            assert model.score(sentence) == pytest.approx(inner.score(sentence))
            found = list(model.full_scores(sentence))
            assert [p for p, _, _ in found] == pytest.approx([p for _, p in words])
            assert [oov for _, _, oov in found] == [word == "unheard" for word, _ in words]
            state, after = ours.State(), ours.State()
            model.BeginSentenceWrite(state)
            for word, p in words:
                assert model.BaseScore(state, word, after) == pytest.approx(p)
                state, after = after, state
        assert "w1" in model
        assert "</s>" in model
        assert "unheard" not in model

    def test_no_context_is_the_unigram(self, model: ours.Model) -> None:
        """Without a context, only the words since then count."""
        (alone, length, _), *_ = model.full_scores("w1 w2", bos=False)
        assert length == 1
        begin, after = ours.State(), ours.State()
        assert model.BaseScore(begin, "w1", after) == alone, "a new state is that of no context"
        for k in range(3, 20):  # a long history of unknown words has no rows either, but may have features of <UNK>
            assert model.BaseScore(begin, f"w{k}", after) != model.score(f"w{k}", eos=False)

    def test_length_of_the_ngram(self, model: ours.Model, corpus: Path) -> None:
        sentence = corpus.read_text().split("\n")[5]
        lengths = [length for _, length, _ in model.full_scores(sentence)]
        most = 3 if "kn" in str(model.path) else 4
        assert lengths[:most] == list(range(2, most + 1)) + [most] * (len(lengths[:most]) - most + 1)
        assert set(lengths) <= set(range(1, most + 1))

    def test_order_is_the_reach(self, model: ours.Model) -> None:
        if "kn" in str(model.path):
            assert model.order == 3
            return
        assert model.order == 1 + max(1 + 6 + 1, 2 + 2 + 1)  # tied: one word, six skipped, one more
        head = "w1 w2 w3 w4 w5 w6 w7 w8"
        far, near = [
            model.score(f"{first} {head} w3", eos=False) - model.score(f"{first} {head}", eos=False)
            for first in ("w7", "w90")
        ]
        assert far == pytest.approx(near), "a word that is farther away does not count"

    @pytest.mark.parametrize(("kind", "order"), [("hsme", 3), ("lstm", 1 << 16)])
    def test_neural_models(self, kind: str, order: int) -> None:
        model = ours.Model(str(Path(__file__).parent / "golden" / "format3" / kind))
        assert model.order == order
        line = "the old stone holds the lantern"
        assert model.score(line) == pytest.approx(model.snm_model.score(line), abs=1e-5)
        assert sum(score for score, _, _ in model.full_scores(line)) == pytest.approx(model.score(line), abs=1e-5)
        before, after = ours.State(), ours.State()
        model.NullContextWrite(before)
        assert -20 < model.BaseScore(before, "the", after) < 0
        assert before != after


class TestPlace:
    """`install`, and binary files."""

    @pytest.fixture(autouse=True)
    def _restored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "kenlm", kenlm)

    def test_install(self) -> None:
        ours.install()
        import kenlm as imported

        assert imported is ours
        assert real_kenlm().Model is not ours.Model
        assert sys.modules["kenlm"] is ours

    def test_a_binary_file_opens_through_kenlm(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The package cannot write binary files, so another stands in its place."""
        path = tmp_path / "model.binary"
        path.write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\x00" + b"\x00" * 99)
        assert is_binary(str(path))
        with pytest.raises(OSError, match="Cannot read model"):  # the real package: the rest is no model
            ours.Model(str(path))

        class Opened(kenlm.Model):  # type: ignore[misc, name-defined]
            def __init__(self, path: bytes, config: Any) -> None:
                super().__init__(str(GOLDEN), config)

        monkeypatch.setattr(kenlm, "Model", Opened)
        config = ours.Config()
        config.show_progress, config.arpa_complain = False, ours.ARPALoadComplain.NONE
        model, reference = ours.Model(str(path), config), ours.Model(str(GOLDEN))
        assert model.snm_model is None
        assert model.order == reference.order
        states = []
        for one in (model, reference):
            state, after = ours.State(), ours.State()
            one.BeginSentenceWrite(state)
            states.append((one.BaseScore(state, "the", after), one.BaseScore(after, "zebra", ours.State())))
            assert copy.copy(after) == after
            assert not after < copy.copy(after)
        assert states[0] == pytest.approx(states[1], abs=1e-5)
        for sentence in _sentences(reference, 50):
            assert model.score(sentence) == pytest.approx(reference.score(sentence), abs=1e-5, rel=1e-6)
            found, expected = list(model.full_scores(sentence, False)), list(reference.full_scores(sentence, False))
            assert [row[1:] for row in found] == [row[1:] for row in expected]
        for word in ("the", "</s>", "<unk>", "zebra"):
            assert (word in model) == (word in reference)

    def test_a_binary_file_without_kenlm(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        path = tmp_path / "model.binary"
        path.write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\x00")
        monkeypatch.setitem(sys.modules, "kenlm", None)
        with pytest.raises(OSError, match="pip install kenlm"):
            ours.Model(str(path))
