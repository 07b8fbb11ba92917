"""Reports and comparisons of all families of models."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import snm
from snm.cli.main import main
from snm.errors import InputError, SettingsError
from snm.layouts.tokens import BEGIN, UNKNOWN
from snm.model import Explanation
from snm.progress import ignore, silent
from snm.reporting import plots
from snm.reporting.bootstrap import GROUPS, difference, interval, perplexity, resample
from snm.reporting.contributions import contributions, sampled
from snm.reporting.report import compare, report
from snm.reporting.sizes import model_bytes, sizes
from snm.reporting.texts import PIECE, read_sample
from snm.reporting.words import ranks_of
from tests.conftest import shared_data, write_bigrams
from tests.test_markup import HOSTILE, Tags

GOLDEN = Path(__file__).parent / "golden"
KINDS = sorted(path.name for path in (GOLDEN / "format3").iterdir() if path.is_dir())
TEXT = GOLDEN / "text.txt"


def golden(name: str) -> Path:
    return GOLDEN / "format3" / name


@pytest.fixture(scope="module")
def kn(corpus_file: Path, model_path: Path) -> snm.LanguageModel:
    return snm.train(corpus_file, model_path.parent / "kn3.model", snm.Settings(model="kn", order=3, threads=1))


@pytest.fixture(scope="module")
def mixed(corpus_file: Path, model_path: Path, kn: snm.LanguageModel) -> snm.LanguageModel:
    return snm.mix([model_path, kn], corpus_file, model_path.parent / "mixed.model")


# ---------------------------------------------------------------------------------------------
# every family


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_on_every_family(kind: str, tmp_path: Path) -> None:
    made = report(golden(kind), TEXT, resamples=50)
    with snm.load(golden(kind)) as model:
        expected = model.perplexity(TEXT)
        family = model.manifest["kind"]
    (figures,) = made.comparison.models
    for name in (
        "sentences",
        "tokens",
        "oov",
        "logprob10",
        "ppl",
        "ppl_no_oov",
        "ppl_spelled",
        "bits_per_byte",
        "bytes",
    ):
        found, wanted = getattr(figures.perplexity, name), getattr(expected, name)
        assert found is wanted is None or found == pytest.approx(wanted, rel=1e-9), name
    assert figures.interval.value == pytest.approx(expected.ppl)
    assert figures.interval.low <= expected.ppl <= figures.interval.high
    for bands in (made.by_length, made.by_frequency):
        counted = sum(band.words for band in bands)
        bits = sum(band.words * (band.bits[0] or 0.0) for band in bands)
        assert 2 ** (bits / counted) == pytest.approx(expected.ppl, rel=1e-6)
        assert sum(band.share for band in bands) == pytest.approx(1)
    assert bool(made.details[0].contributions) == (family not in ("hsme", "rnn"))
    assert made.details[0].sizes
    made.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert Tags(page).names.isdisjoint({"script", "link", "img", "object", "embed"})
    assert ("What brings how much" in page) == (family not in ("hsme", "rnn"))
    assert ">Comparison<" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_a_report_on_a_hybrid(tmp_path: Path) -> None:
    model = snm.mix_gated([golden("snm"), golden("lstm")], TEXT, tmp_path / "hybrid.model", units=4)
    made = report(model, TEXT, resamples=20)
    assert made.comparison.models[0].perplexity.ppl == pytest.approx(model.perplexity(TEXT).ppl)
    assert [one.title for one in made.details[0].contributions] == ["By member", "By feature type"]
    assert {part.name for part in made.details[0].contributions[0].parts} == {"snm", "lstm"}
    assert made.details[0].sizes[0].title == "By member"
    made.save(tmp_path / "report.html")
    assert "lstm: rnn" in (tmp_path / "report.html").read_text()


def test_all_families_together(tmp_path: Path) -> None:
    of_words = [kind for kind in KINDS if kind != "snm-characters"]
    made = report([golden(kind) for kind in of_words], TEXT, resamples=50)
    assert [model.name for model in made.comparison.models] == of_words
    assert made.comparison.basis == "known"
    assert made.comparison.models[0].difference is None
    assert all(model.difference is not None for model in made.comparison.models[1:])
    made.save(tmp_path / "report.html")
    assert "Compared with backoff" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_notebooks_show_models(kind: str) -> None:
    with snm.load(golden(kind)) as model:
        shown = model._repr_html_()
        assert str(golden(kind)) in shown
        assert model.manifest["written_by"] in shown
    assert "written by" in shown
    assert getattr(model, "path", None) == golden(kind)
    with pytest.raises(snm.errors.ClosedModel):
        model._repr_html_()


def test_notebooks_show_explanations_and_reports(model_path: Path) -> None:
    model = snm.load(model_path)
    explained = model.explain("the cat zork")
    assert isinstance(explained[0], Explanation)
    assert explained._repr_html_().count('class="snm-word"') == 4
    assert explained[0]._repr_html_().count('class="snm-word"') == 1
    assert "ppl" in model.perplexity(["the cat"])._repr_html_()
    compared = snm.compare([model, model], iter(["the cat sees fish"]), resamples=5)._repr_html_()
    assert "<caption>All figures" in compared
    assert "<caption>Compared with" in compared
    framed = snm.report(model, iter(["the cat sees fish"]), resamples=5)._repr_html_()
    assert Tags(framed).names == {"iframe"}
    assert 'sandbox=""' in framed


# ---------------------------------------------------------------------------------------------
# the bootstrap


def drawn(random: np.random.Generator, sentences: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """ln P and numbers of words of sentences."""
    units = random.integers(3, 30, sentences).astype(np.float64)
    return -units * random.normal(5.0, 1.0, sentences), units


def test_an_interval_is_that_of_the_central_limit() -> None:
    logs, units = drawn(np.random.default_rng(1))
    mean = logs.sum() / units.sum()
    error = np.sqrt(np.var(logs - mean * units) * len(units)) / units.sum()
    sums = resample(np.array([logs, units]), 2000, 1)
    found = interval(math.exp(-mean), perplexity(sums[:, 0], sums[:, 1]))
    expected = [math.exp(-mean - 1.96 * error), math.exp(-mean + 1.96 * error)]
    assert np.log([found.low, found.high]) == pytest.approx(np.log(expected), abs=0.15 * error)


def test_many_sentences_are_drawn_in_groups() -> None:
    logs, units = drawn(np.random.default_rng(2), 3 * GROUPS + 7)
    sums = resample(np.array([logs, units]), 20, 1)
    assert sums.mean(axis=0) == pytest.approx([logs.sum(), units.sum()], rel=0.01)
    assert (sums.std(axis=0) > 0).all()


def differing(random: np.random.Generator, effect: float) -> float:
    """The p-value of two models of which one predicts each word better by `effect` nats."""
    first, units = drawn(random, 200)
    second = first + units * (effect + random.normal(0.0, 0.2, len(units)))
    sums = resample(np.array([first, second, units]), 200, 3)
    return difference(first, second, units, (sums[:, 0], sums[:, 1], sums[:, 2])).p_value


def test_p_values() -> None:
    random = np.random.default_rng(5)
    by_chance = [differing(random, 0.0) for _ in range(100)]
    assert np.mean(np.array(by_chance) < 0.05) < 0.15
    assert 0.35 < np.mean(by_chance) < 0.65
    assert max(differing(random, 0.1) for _ in range(5)) < 0.02


@pytest.mark.parametrize(("sentences", "p_value"), [(1, 1.0), (3, 0.25), (40, 1 / 51)])
def test_few_sentences_show_little(sentences: int, p_value: float) -> None:
    first, units = np.full(sentences, -10.0), np.full(sentences, 5.0)
    sums = resample(np.array([first, first + 1, units]), 50, 1)
    found = difference(first, first + 1, units, (sums[:, 0], sums[:, 1], sums[:, 2]))
    assert found.p_value == pytest.approx(p_value)
    assert found.ratio.value == pytest.approx(math.exp(-0.2))


def test_a_model_beside_itself(model_path: Path, corpus_file: Path) -> None:
    found = compare({"a": model_path, "b": model_path}, corpus_file, resamples=50).models[1].difference
    assert found is not None
    assert (found.ratio.value, found.ratio.low, found.ratio.high, found.p_value, found.better) == (1, 1, 1, 1, 0.5)


def test_differences_are_ratios_of_perplexities(model_path: Path, kn: snm.LanguageModel, corpus_file: Path) -> None:
    made = compare([model_path, kn], corpus_file, resamples=300)
    a, b = made.models
    assert made.basis == "unk"
    assert b.difference is not None
    assert b.difference.ratio.value == pytest.approx(b.perplexity.ppl / a.perplexity.ppl)
    unpaired = b.interval.high / a.interval.low - b.interval.low / a.interval.high
    assert b.difference.ratio.high - b.difference.ratio.low < unpaired
    again = compare([model_path, kn], corpus_file, resamples=300, threads=2)
    assert again.models[1].difference == b.difference


# ---------------------------------------------------------------------------------------------
# what is compared


def test_other_vocabularies_are_spelled(model_path: Path, corpus_file: Path) -> None:
    fewer = snm.train(corpus_file, model_path.parent / "few.model", snm.Settings(features="ngram(0..2)", max_words=8))
    text = ["the cat likes cake", "a dog sees zork", "the old man eats fish"]
    made = compare([model_path, fewer], iter(text), resamples=20)
    assert made.basis == "spelled"
    both = [snm.load(model_path).perplexity(text), fewer.perplexity(text)]
    assert made.models[1].difference is not None
    assert made.models[1].difference.ratio.value == pytest.approx(both[1].ppl_spelled / both[0].ppl_spelled)  # type: ignore[operator]


def test_an_arpa_file_is_compared_by_known_words(model_path: Path) -> None:
    text = ["the old sea", "the cat sees fish", "a stone"]
    made = compare([model_path, GOLDEN / "kneser-ney.arpa"], iter(text), resamples=20)
    assert made.basis == "known"
    scored = [snm.load(path) for path in (model_path, GOLDEN / "kneser-ney.arpa")]
    words = [[dict(enumerate(line)) for line in model.score_words(text)] for model in scored]
    known = [
        (i, k)
        for i, line in enumerate(words[0])
        for k, (word, _) in line.items()
        if word == "</S>" or all(model.vocabulary.id_of(word) != UNKNOWN for model in scored)
    ]
    totals = [sum(line[i][k][1] for i, k in known) for line in words]
    assert made.models[1].difference is not None
    assert made.models[1].difference.ratio.value == pytest.approx(10 ** ((totals[0] - totals[1]) / len(known)))


def test_tokenizers_that_differ(model_path: Path, corpus_file: Path) -> None:
    pieces = snm.train(
        corpus_file, model_path.parent / "bytes.model", snm.Settings(features="ngram(0..4)", tokenizer="bytes")
    )
    text = ["the cat likes cake", "a dog sees fish", ""]
    made = report([model_path, pieces], iter(text), resamples=20)
    assert made.comparison.basis == "spelled"
    assert made.aligned == [made.comparison.models[0].name]
    ppl = [
        model.perplexity(text).ppl_word or model.perplexity(text).ppl_spelled
        for model in (snm.load(model_path), pieces)
    ]
    found = made.comparison.models[1].difference
    assert found is not None
    assert found.ratio.value == pytest.approx(ppl[1] / ppl[0])  # type: ignore[operator]
    assert compare([GOLDEN / "kneser-ney.arpa", pieces], iter([*text, "zork"]), resamples=5).basis == "none"
    alone = report(pieces, iter(text), resamples=5)
    assert alone.hardest_sentences[0].words[-1][0] == "↵"


# ---------------------------------------------------------------------------------------------
# texts


def test_a_long_text_is_sampled_evenly(tmp_path: Path) -> None:
    lines = [f"line {i} of a long text\n" for i in range(60_000)]
    path = tmp_path / "long.txt"
    path.write_text("".join(lines))
    said: list[str] = []
    sample = read_sample(str(path), 6 * PIECE, "fail", silent, said.append)
    assert (sample.name, sample.read, sample.whole) == ("long.txt", path.stat().st_size + 1, False)
    assert 3 * PIECE <= sample.kept <= 6 * PIECE
    kept = [int(line.split()[1]) for line in sample.lines if line]
    assert kept == sorted(set(kept))
    assert set(map(bytes.decode, sample.lines)) <= {line.strip() for line in lines} | {""}
    parts = np.histogram(kept, bins=3, range=(0, 60_000))[0]
    assert parts.min() > 0
    whole = read_sample(str(path), 1 << 30, "fail", silent, ignore)
    assert whole.whole
    assert whole.data == path.read_bytes() + b"\n"


def test_a_sample_is_said_to_be_one(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("the cat sees fish\n" * 20_000)
    said: list[str] = []
    made = report(model_path, path, sample=1 << 17, resamples=5, notify=said.append)
    assert any("evenly spread" in line for line in said)
    assert not made.comparison.whole
    made.save(tmp_path / "page.html")
    assert "An even sample of 66 KB out of 360 KB of text" in (tmp_path / "page.html").read_text()


def test_documents_are_whole(corpus_file: Path, model_path: Path) -> None:
    settings = snm.Settings(features="ngram(0..3) + cache()", document=True, threads=1)
    model = snm.train(corpus_file, model_path.parent / "document.model", settings)
    text = corpus_file.parent / "documents.txt"
    text.write_text("\n\n".join("\n".join(["the cat sees fish", "a dog likes cake"] * 20) for _ in range(5)))
    assert report(model, text, resamples=5).comparison.models[0].perplexity.ppl == pytest.approx(
        model.perplexity(text).ppl
    )


@pytest.mark.parametrize("text", [[], ["", "  "]])
def test_no_words(model_path: Path, text: list[str]) -> None:
    with pytest.raises(InputError, match="no words"):
        report(model_path, iter(text))


def test_wrong_arguments(model_path: Path) -> None:
    with pytest.raises(SettingsError, match="no model given"):
        report([], ["a"])
    with pytest.raises(SettingsError, match="models is 3"):
        compare(3, ["a"])  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="path is 3"):
        report([3], iter(["a"]))  # type: ignore[list-item]
    with pytest.raises(snm.errors.ModelNotFound):
        report("/no/such.model", iter(["a"]))
    with pytest.raises(SettingsError, match="resamples"):
        compare([model_path, model_path], ["a"], resamples=0)


def test_models_have_the_names_that_tell_them_apart(model_path: Path, tmp_path: Path) -> None:
    for folder in ("x", "y"):
        shutil.copytree(model_path, tmp_path / folder / "my.model")
    made = compare([tmp_path / "x" / "my.model", tmp_path / "y" / "my.model"], iter(["the cat"]), resamples=5)
    assert [model.name for model in made.models] == ["x/my", "y/my"]


# ---------------------------------------------------------------------------------------------
# words


def test_ranks_are_those_of_the_counts(model_path: Path, kn: snm.LanguageModel, corpus_file: Path) -> None:
    words = corpus_file.read_text().split()
    counts = {word: words.count(word) for word in set(words)}
    for model in (snm.load(model_path), kn):
        ranks = dict(zip(model.vocabulary.words, ranks_of(model).tolist(), strict=True))
        assert counts[min(counts, key=lambda word: ranks[word])] == max(counts.values())
        assert sorted(ranks[word] for word in counts) == list(range(1, len(counts) + 1))


def test_hard_words_and_sentences(model_path: Path) -> None:
    text = ["the cat sees fish", "the old man likes cake", "cake cake cake cake cake cake", "a dog eats zork"]
    text.append(text[2])
    made = report(model_path, iter(text), resamples=5)
    model = snm.load(model_path)
    scored = [one for line in model.score_words(text) for one in line]
    worst = min((p, word) for word, p in scored if word not in ("zork", "</S>"))
    assert made.hardest_places[0].word == worst[1] == "cake"
    assert made.hardest_places[0].bits[0] == pytest.approx(-worst[0] * math.log2(10))
    assert made.hardest_places[0].before == ""
    assert "the old man likes" in [place.before for place in made.hardest_places]
    assert made.unknown_words == [("zork", 1)]
    assert [word for word, _ in made.hardest_sentences[0].words] == [*text[2].split(), "↵"]
    assert len(made.hardest_sentences) == 2  # of five words and more; one is there twice
    assert made.hardest_sentences[0].ppl[0] == pytest.approx(model.perplexity([text[2]]).ppl)
    assert all(word.times >= 2 for word in made.hardest_words)


# ---------------------------------------------------------------------------------------------
# what brings how much


def explained(model: snm.LanguageModel, lines: list[str]) -> Iterator[Explanation]:
    for line in lines:
        yield from model.explain(line)


def tokens_of(model: snm.LanguageModel, lines: list[str]) -> np.ndarray:
    return np.concatenate([[*model.context(line), 1] for line in lines]).astype(np.uint32)


LINES = ["the cat sees fish", "a dog likes cake", "the old man eats zork"]


@pytest.mark.parametrize("kind", ["snm", "snm-cache", "snm-16bit-ungated", "sources"])
def test_contributions_are_those_of_explanations(kind: str) -> None:
    model = snm.load(golden(kind))
    lines = TEXT.read_text().split("\n")[:6]
    made = contributions(model, tokens_of(model, lines), silent)
    words = list(explained(model, lines))
    for one in made:
        assert sum(p.share for p in one.parts) == pytest.approx(1, abs=1e-5)
        assert one.words == len(words)
    if kind == "sources":
        shares = [word.sources for word in words]
        for part in made[0].parts:
            expected = [s.get(part.name, 0.0) / w.probability for s, w in zip(shares, words, strict=True)]
            assert part.share == pytest.approx(np.mean(expected), abs=1e-5)
    else:
        empty = [next(p for p in word.parts if p.feature == "[]") for word in words]
        part = next(p for p in made[0].parts if p.name == "1-gram")
        expected = [p.share / w.probability for p, w in zip(empty, words, strict=True)]
        assert part.share == pytest.approx(np.mean(expected), abs=1e-5)
        assert part.weight == pytest.approx(np.mean([p.weight for p in empty]), abs=1e-5)


def test_perplexity_without_a_source() -> None:
    model = snm.load(golden("sources"))
    lines = TEXT.read_text().split("\n")[:6]
    made = contributions(model, tokens_of(model, lines), silent)[0]
    for part in made.parts:
        lost = []
        for word in explained(model, lines):
            own = [p for p in word.parts if p.source == part.name]
            without = (word.probability - sum(p.share for p in own)) / (1 - sum(p.weight for p in own))
            lost.append(math.log(word.probability / without) if without > 1e-12 else math.inf)
        if part.without is not None:
            assert part.without == pytest.approx(math.expm1(np.mean(lost)), rel=1e-3)


def test_orders_are_those_of_the_longest_ngrams(kn: snm.LanguageModel) -> None:
    import snm.kenlm as kenlm

    lines = ["the cat sees fish", "the old man likes the cat", "cake dog a zork"]
    counts = np.zeros(4)
    for line in lines:
        for _, length, _ in kenlm.Model(str(kn.path)).full_scores(line):
            counts[length] += 1
    (made,) = contributions(kn, tokens_of(kn, lines), silent)
    shares = {part.name: part.share for part in made.parts}
    assert shares == pytest.approx({f"{n}-gram": counts[n] / counts.sum() for n in (1, 2, 3)})


def test_members_of_a_mixture(mixed: snm.LanguageModel) -> None:
    made = contributions(mixed, tokens_of(mixed, LINES), silent)
    assert [one.title for one in made] == ["By member", "member0 (snm): By feature type", "member1 (backoff): By order"]
    assert sum(part.share for part in made[0].parts) == pytest.approx(1)
    assert sum(part.weight or 0.0 for part in made[0].parts) == pytest.approx(1)


def test_a_sample_has_whole_segments() -> None:
    tokens = np.tile(np.array([BEGIN, 5, 6, 7, 1], np.uint32), 20_000)
    found = sampled(tokens)
    assert 10_000 < len(found) < 30_000
    assert np.array_equal(found, np.tile(tokens[:5], len(found) // 5))
    assert sampled(tokens[:50]) is not None


# ---------------------------------------------------------------------------------------------
# sizes and curves


def test_sizes_add_up(model_path: Path, kn: snm.LanguageModel, mixed: snm.LanguageModel) -> None:
    for model in (snm.load(model_path), kn):
        (made,) = sizes(model)
        assert sum(part.rows or 0 for part in made.parts) == model.manifest["rows"]
        assert sum(part.links or 0 for part in made.parts) == model.manifest["links"]
    assert sum(part.bytes or 0.0 for part in sizes(snm.load(model_path))[0].parts) == pytest.approx(
        model_bytes(snm.load(model_path)), rel=1e-6
    )
    first = sizes(mixed)[0]
    assert [part.name for part in first.parts] == ["member0", "member1"]


def test_sizes_of_pruned_and_older_models(model_path: Path, corpus_file: Path, tmp_path: Path) -> None:
    smaller = snm.prune(model_path, tmp_path / "pruned.model", links=300)
    assert "not known of a pruned model" in sizes(smaller)[0].note
    assert "an older version" in sizes(snm.load(golden("snm")))[0].note
    assert [chart.title for chart in plots.of_pruning(snm.load(model_path), smaller)] == ["Size, MB", "Size, links"]


def test_sizes_that_pruning_tried_are_a_curve(tmp_path: Path) -> None:
    text, dev = (write_bigrams(tmp_path / f"{seed}.txt", seed, 1500, 300, 20) for seed in (1, 2))
    model = snm.train(text, tmp_path / "kn.model", snm.Settings(model="kn", order=3, threads=1))
    smaller = snm.prune(model, tmp_path / "pruned.model", loss=0.3, dev=dev)
    tried = smaller.manifest["pruning"]["tried"]
    fitting = [size for size, loss in tried if loss <= 0.3]
    assert smaller.manifest["pruning"]["budget"]["size"] == min(fitting)
    assert "Pruning" in [chart.title for chart in plots.of_pruning(model, smaller)]


def test_the_course_of_training_is_recorded(model_path: Path) -> None:
    training = snm.load(model_path).manifest["training"]
    assert 1 < len(training["course"]) <= 32 or len(training["course"]) == 1
    assert min(training["course"]) <= training["losses"][0] <= max(training["course"])


def test_curves(model_path: Path) -> None:
    titles = [chart.title for chart in plots.of_model(snm.load(golden("snm")))]
    assert "Gate" in titles
    assert "Training" in [chart.title for chart in plots.of_model(snm.load(golden("lstm")))]


# ---------------------------------------------------------------------------------------------
# hostile words


@pytest.fixture(scope="module")
def hostile_model(tmp_path_factory: pytest.TempPathFactory) -> snm.LanguageModel:
    """A model whose words are markup, and whose name is too."""
    words = [word.replace(" ", "_") for word in HOSTILE if "\x00" not in word and "\ud800" not in word]
    lines = [" ".join(words[i % 4 :] + words[: i % 3]) for i in range(60)]
    path = tmp_path_factory.mktemp("hostile") / "<b>model&.model"
    return snm.train(iter(lines), path, snm.Settings(features="ngram(0..2)", threads=1))


def test_hostile_words_are_escaped(hostile_model: snm.LanguageModel, tmp_path: Path) -> None:
    word = "<script>alert('x')</script>"
    text = [f"{word} a&b {word}", f'a&b "><img_src=x_onerror=alert(1)> <iframe> {word}', "<unk> <x> <y> <z>"]
    made = report({"<i>n</i>": hostile_model, "b": hostile_model}, iter(text), resamples=5)
    made.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert word.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;") in page
    read = Tags(page)
    assert read.names.isdisjoint({"script", "img", "iframe", "x", "y", "b"})
    assert not any(name.startswith("on") for name in read.attributes)
    for shown in (made._repr_html_(), hostile_model._repr_html_(), hostile_model.explain(text[0])._repr_html_()):
        assert Tags(shown).names.isdisjoint({"script", "img", "b", "x"})


# ---------------------------------------------------------------------------------------------
# commands


def run(*arguments: object, code: int = 0, **more: Any) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], **more)
    assert result.exit_code == code, result.output
    return result.output


def test_report_command(model_path: Path, kn: snm.LanguageModel, corpus_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    output = run("report", model_path, f"other={kn.path}", corpus_file, "-o", page, "--resamples", 20)
    assert output.split("\n")[0].split()[:2] == ["model", "perplexity"]
    assert "other" in page.read_text()
    printed = run("report", model_path, corpus_file, "-o", page, "--resamples", 20, "--json").split("\n")
    found = json.loads(next(line for line in printed if line.startswith('{"comparison"')))
    assert found["comparison"]["models"][0]["perplexity"]["ppl"] == pytest.approx(
        snm.load(model_path).perplexity(corpus_file).ppl
    )
    assert (
        run("report", model_path, "-", "-o", "-", "--resamples", 5, input="the cat\n").lstrip().startswith("<!doctype")
    )
    assert "no folder" in run("report", model_path, corpus_file, "-o", tmp_path / "none" / "r.html", code=2)


def test_compare_command(model_path: Path, kn: snm.LanguageModel, corpus_file: Path) -> None:
    arguments = "compare", model_path, kn.path, corpus_file, "--resamples", 20
    output = run(*arguments, "--plot")
    assert "p-value" in output
    assert "├" in output
    found = json.loads(next(line for line in run(*arguments, "--json").split("\n") if line.startswith('{"text"')))
    assert set(found["models"][1]["difference"]) == {"ratio", "p_value", "better"}
    assert "expected two models" in run("compare", model_path, corpus_file, code=2)
    assert "TEXT as the last argument" in run("compare", model_path, model_path, kn.path, code=2)


def test_plot_options(model_path: Path, corpus_file: Path, tmp_path: Path) -> None:
    output = run("ppl", "--plot", model_path, corpus_file)
    assert "By frequency of the word" in output
    assert max(map(len, output.split("\n"))) <= 100
    assert (
        max(
            map(
                len,
                run("ppl", model_path, corpus_file, "--plot", env={"COLUMNS": "60"}).split("By freq")[1].split("\n"),
            )
        )
        <= 60
    )
    picture = tmp_path / "a.svg"
    assert "By frequency" not in run("ppl", "--plot", picture, model_path, corpus_file)
    assert "By frequency" in picture.read_text()
    assert json.loads(run("ppl", model_path, corpus_file, "--plot", picture, "--json"))["ppl"] > 1
    assert "By feature type: links" in run("info", "--plot", model_path)
    assert "expected one that ends in .svg" in run("info", "--plot=a.jpg", model_path, code=2)
    smaller = run("prune", model_path, "--links", 300, "-o", tmp_path / "small.model", "--plot")
    assert "after" in smaller


def test_the_plan_grows(tmp_path: Path, corpus_file: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(corpus_file.read_text() * 30)
    output = run("plan", text, "--preset", "snm5", "--plot", "--folds", 0, "-o", tmp_path)
    assert "Growth of rows and links" in output


def test_real_text_has_hard_words(model_path: Path) -> None:
    """A text of another language has unknown words; its report has them, and warns of nothing else."""
    path = shared_data("novels-de", "test.txt.xz")
    made = report(model_path, path, sample=1 << 18, resamples=20)
    assert made.comparison.models[0].perplexity.oov_rate > 0.5
    assert made.unknown_words[0][1] > 10
