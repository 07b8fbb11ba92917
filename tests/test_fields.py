"""Fields before lines: reading them, their features, and models that have them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import snm
from snm.cli.main import main
from snm.counts.counting import Counter as LinkCounter
from snm.counts.counting import unigram_row
from snm.errors import SettingsError, SpecError
from snm.evaluation import check_sums, verify
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.layouts.counts import Counts
from snm.layouts.keys import KeyLayout
from snm.reference import paper
from snm.scoring.lines import score_block
from snm.scoring.model import SnmModel
from snm.settings import Settings
from snm.text.encoding import Text, encode_files, encode_lines, read_corpus
from snm.text.fields import FieldMarker, field_names
from snm.text.vocabulary import Vocabulary
from tests.conftest import parts_of, train
from tests.test_parity import as_dictionary, key

SPEAKERS = {"ann": "the cat sees fish", "bob": "a dog eats cake", "cat": "the old man likes a dog"}


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines whose speaker says what will follow."""
    random, path = np.random.default_rng(5), tmp_path_factory.mktemp("spoken") / "text"
    lines = []
    for _ in range(900):
        speaker = random.choice(list(SPEAKERS))
        words = " ".join(random.permutation(SPEAKERS[speaker].split()))
        lines.append(f"speaker={speaker} topic={random.choice(['x', 'y'])} {words}")
    path.write_text("\n".join([*lines, "speaker=eve topic=z so rare", ""]))
    return path


@pytest.fixture(scope="module")
def model(spoken: Path, tmp_path_factory: pytest.TempPathFactory) -> SnmModel:
    settings = Settings(features="ngram(0..2)", fields="speaker,topic", threads=1)
    made = train([spoken], tmp_path_factory.mktemp("fields") / "m", settings, dev=[spoken])
    assert isinstance(made, SnmModel)
    return made


# ---------------------------------------------------------------------------------------------
# reading


def test_fields_are_marked_at_the_beginning_of_lines_only() -> None:
    mark = FieldMarker(["speaker", "topic"])
    block = b"speaker=ann  topic=law the speaker=x text\n the speaker=y\n\ttopic=a=b\nother=1 a\nspeaker= a\n"
    assert mark(block) == (
        b"\x01speaker=ann \x01topic=law the speaker=x text\n the speaker=y\n\x01topic=a=b \nother=1 a\n\x01speaker= a\n"
    )
    assert mark.bytes == len(b"_speaker=ann _topic=law _topic=a=b _speaker= ")


def test_a_line_may_span_blocks_and_text_cannot_fake_a_mark() -> None:
    mark = FieldMarker(["speaker"])
    assert mark(b"speaker=ann the") == b"\x01speaker=ann the"
    assert mark(b"speaker=bob text\nspeaker=c d\n") == b"speaker=bob text\n\x01speaker=c d\n"
    assert mark(b"\x01speaker=ann text\n") == b"\x02speaker=ann text\n"


def test_the_vocabulary_has_frequent_values_behind_all_words(spoken: Path) -> None:
    text, vocabulary = read_corpus([spoken], fields=["speaker", "topic"], threads=2)
    values = [f"\x01speaker={s}" for s in ("", "ann", "bob", "cat")] + [f"\x01topic={t}" for t in ("", "x", "y")]
    assert list(vocabulary.words[vocabulary.first_field :]) == values
    assert vocabulary.fields == ("speaker", "topic")
    assert text.tokens[:3].tolist() == [0, *vocabulary.ids_of([f"\x01{v}" for v in _first(spoken).split()[:2]])]
    end = text.tokens[text.tokens.tolist().index(0, len(text.tokens) - 6) :]
    assert end.tolist() == [0, *vocabulary.ids_of(["\x01speaker=", "\x01topic="]), 2, 2, 1]
    again = encode_files([spoken], vocabulary)
    assert np.array_equal(again.tokens, text.tokens)
    assert (again.events, again.sentences, again.bytes) == (text.events, text.sentences, text.bytes)
    plain = [line.partition("topic=")[2].partition(" ")[2] for line in spoken.read_text().splitlines()]
    assert text.events == sum(len(line.split()) + 1 for line in plain)
    assert text.bytes == sum(len(line) + 1 for line in plain)


def _first(path: Path) -> str:
    return path.read_text().split("\n")[0]


@pytest.mark.parametrize("names", ["a,a", "a b", "1a", ["a", ""], 3, {"a": 1}, "a,", [f"f{i}" for i in range(17)]])
def test_wrong_names_are_refused(names: Any) -> None:
    with pytest.raises(SettingsError, match=r"expected|fields"):
        field_names(names)


# ---------------------------------------------------------------------------------------------
# features

VALUES = ["\x01s=", "\x01s=a", "\x01s=b", "\x01t=", "\x01t=c"]
WORDS = [f"w{i}" for i in range(5)]
lines = st.lists(
    st.tuples(st.lists(st.sampled_from(range(8, 13)), max_size=4), st.lists(st.integers(2, 7), min_size=1, max_size=9)),
    min_size=1, max_size=8,
)  # fmt: skip


@given(lines=lines)
def test_features_and_counts_equal_the_reference(lines: list[tuple[list[int], list[int]]]) -> None:
    vocabulary = Vocabulary([*WORDS, *VALUES])
    assert vocabulary.first_field == 8
    tokens = [token for values, words in lines for token in (0, *values, *words, 1)]
    text = Text(np.array(tokens, np.uint32), len(lines), first_field=8)
    spec = FeatureSpec("ngram(0..2) + skip(r=1, s=1, a=0) + side(s, a=0..2) + side(t)")
    extractor = Extractor(spec, KeyLayout.for_work(len(vocabulary), len(spec.types), text.events * 10), vocabulary)
    expected: Counter[tuple[int, int]] = Counter()
    for values, words in lines:
        fields = {"s" if value < 11 else "t": value for value in values}
        for context, target in paper.events([[0, *words, 1]]):
            for feature in paper.features_of(spec, context, fields=fields):
                if feature[1]:
                    expected[key(extractor, feature), target] += 1
    counts = Counts.joined(parts_of(LinkCounter(text, extractor, 1 << 30)))
    assert as_dictionary(counts, counts.link_counts) == expected
    for size in (1, 7):
        parts = [extractor.keys(text.tokens, k, min(k + size, len(tokens))) for k in range(0, len(tokens), size)]
        assert np.array_equal(np.concatenate(parts, axis=1), extractor.keys(text.tokens, 0, len(tokens)))
    row = unigram_row(np.bincount(tokens, minlength=len(vocabulary)), vocabulary)
    assert row.targets.tolist() == list(range(1, 8)), "values are no targets"


def test_fields_reach_no_farther_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, spec = Vocabulary([*WORDS, *VALUES]), FeatureSpec("side(s, a=0)")
    extractor = Extractor(spec, KeyLayout.for_work(13, 2, 100), vocabulary)
    monkeypatch.setattr("snm.features.extraction.FIELD_REACH", 10)
    tokens = np.array([0, 9, *[3] * 30, 1], np.uint32)
    whole = extractor.keys(tokens, 0, len(tokens))[1]
    assert np.flatnonzero(whole).tolist() == list(range(2, 11))
    alone = [extractor.keys(tokens, k, k + 1)[1, 0] for k in range(len(tokens))]
    assert alone == whole.tolist()


def test_a_specification_names_fields_of_the_text() -> None:
    assert FeatureSpec("side(speaker)").text == "ngram(0) + side(speaker, a=0..1)"
    assert FeatureSpec("side(speaker)").sides == ["speaker"]
    assert Settings(fields="a,b", features="snm2 + side(b, a=0..3)").spec.text.endswith("side(a, a=0..1)")
    for wrong in ("side()", "side(a, b)", "side(a, r=1)", "side(1)"):
        with pytest.raises((SpecError, SettingsError), match="expected"):
            FeatureSpec(wrong)
    with pytest.raises(SpecError, match="--fields"):
        snm.train(iter(["a b"] * 9), "never-written", Settings(features="side(speaker)"))


# ---------------------------------------------------------------------------------------------
# models


def test_a_model_knows_who_speaks(model: SnmModel, spoken: Path) -> None:
    assert model.score("speaker=ann the cat") > model.score("speaker=bob the cat") + 0.5
    assert model.next_words("speaker=bob a", k=1)[0][0] in SPEAKERS["bob"].split()
    assert {word for word, _ in model.next_words("speaker=bob", k=99)}.isdisjoint(model.vocabulary.words[-7:])
    (words,) = model.score_words(["speaker=ann topic=x the cat"])
    assert [word for word, _ in words] == ["the", "cat", "</S>"]
    assert model.score("speaker=nobody the cat") == model.score("speaker= the cat")
    bare = [line.split(" ", 2)[2] for line in spoken.read_text().splitlines()]
    assert model.perplexity(spoken).ppl < 0.85 * model.perplexity(bare).ppl


def test_a_line_with_fields_is_scored_alike_everywhere(model: SnmModel) -> None:
    line, words = "speaker=ann topic=y the cat sees fish", ["the", "cat", "sees", "fish", "</S>"]
    expected = model.score_words([line])[0]
    assert model.score(line) == pytest.approx(sum(p for _, p in expected))
    assert model.score(["speaker=ann", "topic=y", *words[:-1]]) == model.score(line)
    assert -model.score(line) == pytest.approx(5 * np.log10(model.perplexity([line]).ppl))
    scores = score_block(model, f"{line}\n\nspeaker=bob a dog\n".encode(), spelled=False)
    assert scores.logprob10[[0, 2]] == pytest.approx([model.score(line), model.score("speaker=bob a dog")])
    assert scores.tokens.tolist() == [5, 0, 3]
    assert [e.word for e in model.explain(line)] == words
    assert [np.log10(e.probability) for e in model.explain(line)] == pytest.approx([p for _, p in expected], rel=1e-6)
    state, stepped = model.start("speaker=ann topic=y"), []
    for word in words:
        p, state = model.step(state, word)
        stepped.append(p)
    assert stepped == pytest.approx([p for _, p in expected], rel=1e-6)
    for k, word in enumerate(words):
        context = model.context(" ".join(line.split()[: 2 + k]))
        assert np.log10(model.distribution(context)[model.vocabulary.id_of(word)]) == pytest.approx(expected[k][1])
        assert model.distribution(context).sum() == pytest.approx(1)


def test_beams_keep_the_fields(model: SnmModel) -> None:
    words = ["the", "cat", "sees", "fish"] * 3  # more than a state has of words
    states = model.state_array([model.start(f"speaker={s}") for s in ("ann", "bob")])
    for word in words:
        scores = model.expand(states, [word, "a"])
        states = model.follow(states, [word, "a"], np.array([0, 2]))
    for row, speaker in enumerate(("ann", "bob")):
        logs = model.score_words([f"speaker={speaker} {' '.join(words)}"])[0]
        assert scores[row, 0] == pytest.approx(logs[len(words) - 1][1], rel=1e-6)
    assert np.isnan(model.expand(states, ["\x01speaker=ann"])).all(), "a value is never predicted"


def test_explanations_name_the_field(model: SnmModel) -> None:
    features = {part.feature for part in model.explain("speaker=ann the cat")[1].parts}
    assert {"[speaker=ann]", "[speaker=ann the]", "[the]", "[<S> the]"} <= features


def test_the_model_is_sound(model: SnmModel, spoken: Path) -> None:
    assert model.manifest["requires"] == ["fields"]
    assert verify(model.path, [spoken], contexts=60).worst < 1e-6
    assert check_sums(model, encode_lines(["speaker=bob the cat"] * 40, model.vocabulary), 60).worst < 1e-6
    with snm.load(model.path) as again:
        assert again.score("speaker=cat the man") == model.score("speaker=cat the man")


def test_start_takes_fields_only(model: SnmModel, model_path: Path) -> None:
    assert model.start("speaker=a speaker=ann") == model.start("speaker=ann"), "the last one counts"
    with pytest.raises(SettingsError, match="its fields are speaker, topic"):
        model.start("place=here")
    other = snm.load(model_path)
    assert isinstance(other, SnmModel)
    with pytest.raises(SettingsError, match="its fields are none"):
        other.start("speaker=ann")
    with pytest.raises(SettingsError, match="expected a string"):
        model.start(3)  # type: ignore[arg-type]


def test_the_gate_adapts_and_a_slice_or_folds_are_held_out(model: SnmModel, spoken: Path, tmp_path: Path) -> None:
    adapted = snm.adapt(model, tmp_path / "adapted", dev=iter(["speaker=ann the cat sees fish"] * 20))
    assert adapted.score("speaker=ann the cat") != model.score("speaker=ann the cat")
    more = tmp_path / "more"
    more.write_text(spoken.read_text() * 12)
    for folds in (0, 3):
        settings = Settings(features="ngram(0..1)", fields="speaker", folds=folds, threads=1)
        made = train([more], tmp_path / f"m{folds}", settings)
        assert made.manifest["gate"] is not None
        assert verify(made.path, [spoken], contexts=30).worst < 1e-6


def test_resuming_and_pruning(spoken: Path, model: SnmModel, tmp_path: Path) -> None:
    settings = Settings(features="ngram(0..2)", fields=("speaker", "topic"), threads=1, resume=True)
    again = train([spoken], tmp_path / "m", settings, dev=[spoken])
    assert again.score("speaker=ann the cat") == pytest.approx(model.score("speaker=ann the cat"), rel=1e-5)
    small = snm.prune(model, tmp_path / "small", links=200, dev=[spoken])
    assert small.score("speaker=ann the cat") > small.score("speaker=bob the cat")


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"model": "kn"}, "SNM"), ({"engine": "gpu"}, "engine cpu"), ({"engine": "ray"}, "engine cpu"),
        ({"document": True}, "documents"), ({"vocab": "words"}, "vocabulary"),
        ({"features": "snm2 + cache()"}, "cache"),
    ],
)  # fmt: skip
def test_what_knows_no_fields_is_refused(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError, match=what) as error:
        Settings(fields="speaker", **wrong)
    assert "\n" not in str(error.value)


def test_what_takes_a_model_without_fields_refuses_one_with(model: SnmModel, spoken: Path, tmp_path: Path) -> None:
    refused: list[Callable[[], Any]] = [
        lambda: snm.mix([model, model], [spoken], tmp_path / "mix"),
        lambda: snm.export_arpa(model, tmp_path / "arpa"),
        lambda: snm.adapt(model, tmp_path / "joined", text=[spoken]),
        lambda: snm.kenlm.Model(str(model.path)),
        lambda: snm.train({"a": [spoken], "b": [spoken]}, tmp_path / "s", Settings(fields="speaker"), dev=[spoken]),
    ]
    for call in refused:
        with pytest.raises((SettingsError, OSError), match="fields"):
            call()


def test_the_command_line_takes_lines_with_fields(spoken: Path, tmp_path: Path) -> None:
    model, runner = str(tmp_path / "m"), CliRunner()
    done = runner.invoke(main, ["train", str(spoken), "-o", model, "--fields", "speaker", "--order", "2", "--quiet"])
    assert done.exit_code == 0, done.output
    ann, bob = (
        json.loads(
            runner.invoke(main, ["score", model, "--json"], input=f"speaker={s} the cat\n").stdout.splitlines()[0]
        )
        for s in ("ann", "bob")
    )
    assert ann["logprob10"] > bob["logprob10"]
    wrong = runner.invoke(main, ["train", str(spoken), "-o", model, "--fields", "a b", "--force"])
    assert wrong.exit_code == 2
    assert "no name of a field" in wrong.output
    assert "Traceback" not in wrong.output
