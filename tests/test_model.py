"""The tests of every language model, and those of SNM models."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import snm
from snm.errors import FormatError, InputError, SettingsError
from snm.evaluation import check_sums, verify
from snm.features.families import feature_family
from snm.features.specification import PRESETS
from snm.kernels.beams import kernels_of
from snm.model import LanguageModel
from snm.reference import paper
from snm.scoring.model import RowModel
from snm.settings import Settings
from snm.text.encoding import Text, encode_files, encode_lines
from tests.conftest import SMALL_SKIPS, train
from tests.test_features import suffix_pair


class LanguageModelTests:
    """Tests of every language model. Subclasses define the fixture `model`."""

    SENTENCE = "the cat sees a purple fish"

    def test_the_distribution_sums_to_one(self, model: LanguageModel) -> None:
        for context in ("", "the", "the cat sees", "purple purple", "a dog eats the cat sees the old man"):
            p = model.distribution(model.context(context))
            assert p.shape == (len(model.vocabulary),)
            assert p.sum() == pytest.approx(1, abs=1e-6)
            assert (p >= 0).all()
            assert p[0] == 0, "<S> is never predicted"

    def test_scores_equal_the_distribution(self, model: LanguageModel) -> None:
        tokens = encode_lines([self.SENTENCE], model.vocabulary).tokens
        p = model.probabilities(tokens)
        assert p[0] == 0
        for k in range(1, len(tokens)):
            if model.vocabulary.closed and tokens[k] == model.vocabulary.unknown:
                assert p[k] == 0
                continue
            assert p[k] == pytest.approx(model.distribution(tokens[:k])[tokens[k]], rel=1e-6)

    def test_every_word_has_a_probability(self, model: LanguageModel) -> None:
        p = model.distribution(model.context("the cat"))
        predicted = np.arange(1, model.vocabulary.first_field)
        predicted = predicted[predicted != model.vocabulary.never_a_target]
        assert (p[predicted] > 0).all()

    def test_sentence_and_word_scores(self, model: LanguageModel) -> None:
        (words,) = model.score_words([self.SENTENCE])
        assert [word for word, _ in words] == [*self.SENTENCE.split(), "</S>"]
        assert model.score(self.SENTENCE) == pytest.approx(sum(p for _, p in words if not math.isnan(p)))
        several = model.score_sentences(["the cat", "", self.SENTENCE])
        assert several[0] == pytest.approx(model.score("the cat"))
        assert math.isnan(several[1])
        assert several[2] == pytest.approx(model.score(self.SENTENCE))

    def test_sentences_are_independent(self, model: LanguageModel) -> None:
        alone = model.score(self.SENTENCE)
        assert model.score_sentences(["a dog eats", self.SENTENCE])[1] == alone

    def test_step_and_steps_equal_sentence_scores(self, model: LanguageModel) -> None:
        """`step` and `steps` give the scores of whole sentences."""
        lines = ["the old man likes cake", "a dog sees the purple cat", "fish eats"] * 30
        expected = [[p for _, p in scored] for scored in model.score_words(lines)]
        state = model.start()
        for line, scores in zip(lines[:3], expected, strict=False):
            after, found = state, []
            for word in [*line.split(), "</s>"]:
                score, after = model.step(after, word)
                found.append(score)
            assert found == pytest.approx(scores, rel=1e-6, nan_ok=True)
        states = model.state_array([state] * len(lines))
        for i in range(4):
            words = [[*line.split(), "</s>", "</s>"][i] for line in lines]
            chosen = [k for k, line in enumerate(lines) if i <= len(line.split())]
            scored, states = model.steps(states, words)
            for k in chosen:
                assert scored[k] == pytest.approx(expected[k][i], rel=1e-6, nan_ok=True)
        with pytest.raises(SettingsError, match="expected one that start"):
            model.steps(states[:1, 1:], ["the"])
        with pytest.raises(SettingsError, match="a row of words for each"):
            model.steps(states[:2], ["the"])
        with pytest.raises(SettingsError, match="the vocabulary has"):
            model.steps(states[:1], np.array([len(model.vocabulary)], np.uint32))
        with pytest.raises(SettingsError, match="expected one that start"):
            model.step(state + state, "the")

    def test_expand_and_follow_equal_step(self, model: LanguageModel) -> None:
        """`expand` gives the scores of `step`, for the same words after all states and for other words after each."""
        words = ["the", "cat", "purple", "</s>", "man", "unheard-of", "fish", "old"]
        states = [model.start()]
        for word in ("the", "old", "man", "likes", "a", "cat", "sees", "the"):
            states.append(model.step(states[-1], word)[1])
        rows = model.state_array(states)
        alone = [[model.step(state, word) for word in words] for state in states]
        expected = np.array([[score for score, _ in scored] for scored in alone])
        scores = model.expand(rows, words)
        assert scores == pytest.approx(expected, rel=1e-6, abs=2e-7, nan_ok=True)
        shifted = [np.roll(words, i) for i in range(len(rows))]
        scores = model.expand(rows, np.array(shifted))
        assert scores == pytest.approx(
            np.array(list(map(np.roll, expected, range(len(rows))))), rel=1e-6, abs=2e-7, nan_ok=True
        )
        assert model.expand(rows[::2], words[:1]) == pytest.approx(expected[::2, :1], rel=1e-6, abs=2e-7, nan_ok=True)
        many = np.tile(np.arange(len(rows)), 20)  # equal states, and more than are worked on together
        assert model.expand(rows[many], words) == pytest.approx(expected[many], rel=1e-6, abs=2e-7, nan_ok=True)
        own = np.array([np.roll(words, k) for k in many])
        rolled = np.array([np.roll(expected[k], k) for k in many])
        assert model.expand(rows[many], own) == pytest.approx(rolled, rel=1e-6, abs=2e-7, nan_ok=True)
        long = np.tile(np.arange(len(words)), 20)  # more words than are worked on together
        assert model.expand(rows, np.array(words)[long]) == pytest.approx(
            expected[:, long], rel=1e-6, abs=2e-7, nan_ok=True
        )
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda k: model.expand(rows[k : k + 3], words), list(range(6)) * 50))
        for k, scores in zip(list(range(6)) * 50, made, strict=True):
            assert scores == pytest.approx(expected[k : k + 3], rel=1e-6, abs=2e-7, nan_ok=True)
        chosen = [3 * 8 + 1, 3 * 8 + 3, 5]
        after = model.follow(rows, words, np.array(chosen))
        assert [row.tobytes() for row in after] == [alone[k // 8][k % 8][1] for k in chosen]
        assert model.follow(rows, np.array(shifted), np.array([3 * 8]))[0].tobytes() == alone[3][-3][1]
        with pytest.raises(SettingsError, match="expected numbers from 0 to 71"):
            model.follow(rows, words, np.array([0, 72]))
        with pytest.raises(SettingsError, match="the vocabulary has"):
            model.follow(rows, np.array([3, len(model.vocabulary)]), np.array([1]))
        with pytest.raises(SettingsError, match="expected strings, or ids"):
            model.expand(rows, np.array([1.0]))
        ids = np.array([model.vocabulary.ids["the"], model.vocabulary.ids["cat"]])
        two = model.expand(rows, ["the", "cat"])
        locked, every = ids.astype(np.uint32), np.asfortranarray(rows)
        locked.flags.writeable = False
        for kind in (ids, ids.astype(">u4"), ids.astype(np.uint8), locked, ids[::-1].astype(np.uint32)[::-1]):
            assert np.array_equal(model.expand(rows, kind), two)
            assert np.array_equal(model.expand(every, kind), two)
            assert model.follow(every, kind, np.array([3], np.uint8)).tobytes() == model.step(states[1], "cat")[1]
        assert model.expand(rows[:0], words).shape == (0, 8)
        assert model.expand(rows, []).shape == (9, 0)
        assert [len(part) for part in model.steps(rows[:0], [])] == [0, 0]
        with pytest.raises(SettingsError, match="a row of words for each"):
            model.expand(rows, np.array([words] * 2))

    def test_threads_do_not_change_scores(self, model: LanguageModel) -> None:
        tokens = encode_lines([self.SENTENCE] * 500, model.vocabulary).tokens
        assert np.array_equal(model.probabilities(tokens), model.probabilities(tokens, threads=3))

    def test_next_words_are_the_largest_of_the_distribution(self, model: LanguageModel) -> None:
        best = model.next_words("the old", k=4)
        p = model.distribution(model.context("the old"))
        assert [q for _, q in best] == sorted(p, reverse=True)[:4]
        assert len(model.next_words("", k=10**6)) <= len(p)
        with pytest.raises(SettingsError, match="k is 0"):
            model.next_words("the", k=0)

    def test_generation(self, model: LanguageModel) -> None:
        assert model.generate(seed=3) == model.generate(seed=3)
        drawn = [model.generate("the cat", seed=seed, max_words=6) for seed in range(20)]
        assert all(sentence.startswith("the cat") for sentence in drawn)
        assert all(len(sentence.split()) <= 8 for sentence in drawn)
        assert not any("<UNK>" in sentence for sentence in drawn)
        assert model.generate("a purple cat", seed=1).startswith("a purple cat"), "the prompt as it was given"
        for wrong in (0, math.inf, math.nan):
            with pytest.raises(SettingsError, match="temperature"):
                model.generate(temperature=wrong)
        with pytest.raises(SettingsError, match="seed"):
            model.generate(seed=-1)

    def test_a_no_break_space_is_part_of_a_word(self, model: LanguageModel) -> None:
        odd = "the\u00a0cat sees"
        assert [word for word, _ in model.score_words([odd])[0]] == ["the\u00a0cat", "sees", "</S>"]
        scores = model.score_sentences(["\u00a0", self.SENTENCE])
        assert scores[1] == pytest.approx(model.score(self.SENTENCE))
        assert len(model.context(odd)) == 3

    def test_perplexity_report(self, model: LanguageModel) -> None:
        text = encode_lines(["the cat sees fish", self.SENTENCE], model.vocabulary)
        report = model.perplexity(text)
        (first, second) = model.score_words(["the cat sees fish", self.SENTENCE])
        logs = [p for word, p in [*first, *second] if word != "purple" or not model.vocabulary.closed]
        assert (report.sentences, report.tokens, report.oov) == (2, 12, 1)
        assert report.oov_rate == pytest.approx(1 / 12)
        assert model.perplexity(["the cat sees fish", self.SENTENCE]).ppl == report.ppl
        assert report.logprob10 == pytest.approx(sum(logs))
        assert report.ppl == pytest.approx(10 ** -(sum(logs) / len(logs)))
        known = [p for word, p in [*first, *second] if word != "purple"]
        assert report.ppl_no_oov == pytest.approx(10 ** -(sum(known) / len(known)))

    def test_perplexity_of_nothing_is_refused(self, model: LanguageModel) -> None:
        with pytest.raises(InputError, match="no words"):
            model.perplexity(encode_lines(["", " "], model.vocabulary))

    def test_sums_over_contexts(self, model: LanguageModel) -> None:
        text = encode_lines(["the cat sees purple fish"] * 30, model.vocabulary)
        report = check_sums(model, text, 100)
        assert report.contexts == 100
        assert report.at_start >= 10
        assert report.with_unknown >= 10
        assert report.worst < 1e-6


class TestSnm(LanguageModelTests):
    @pytest.fixture
    def model(self, model_path: Path) -> LanguageModel:
        return snm.load(model_path)

    def test_training_lowers_perplexity(self, model: LanguageModel, corpus_file: Path, tmp_path: Path) -> None:
        text = encode_files([corpus_file], model.vocabulary)
        unigram = train([corpus_file], tmp_path / "m", Settings(features="ngram(0)", threads=1))
        assert model.perplexity(text).ppl < 0.5 * unigram.perplexity(text).ppl

    def test_scores_do_not_depend_on_the_block_size(
        self, model: LanguageModel, corpus_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens = encode_files([corpus_file], model.vocabulary).tokens
        expected = model.probabilities(tokens)
        for most in (1, 7, 64, 100, 1500):
            monkeypatch.setattr("snm.scoring.texts.MAX_EVENTS", most)
            few = tokens[: 100 * most]
            assert np.array_equal(model.probabilities(few), expected[: len(few)])

    def test_explanations_add_up(self, model: LanguageModel) -> None:
        explained = model.explain(self.SENTENCE)
        scored = model.score_words([self.SENTENCE])[0]
        for explanation, (word, logarithm) in zip(explained, scored, strict=True):
            assert explanation.word == word
            assert explanation.probability == pytest.approx(10**logarithm, rel=1e-6)
            assert sum(part.share for part in explanation.parts) == explanation.probability
            assert sum(part.weight for part in explanation.parts) == pytest.approx(1, rel=1e-6)
        features = [part.feature for part in explained[2].parts]
        assert set(features) >= {"[]", "[cat]", "[the cat]", "[<S> the cat]", "[the skip-1]", "[the skip-*]"}

    def test_nothing_to_explain(self, model: LanguageModel) -> None:
        with pytest.raises(InputError, match="nothing to explain"):
            model.explain("  ")

    def test_verify(self, model: LanguageModel) -> None:
        assert verify(model.path, contexts=50).worst < 1e-6


@pytest.fixture(scope="module")
def closed_model(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> RowModel:
    path = tmp_path_factory.mktemp("closed") / "m"
    return train([corpus_file], path, Settings(features="ngram(0..2)", closed=True, threads=1))


@pytest.fixture(scope="module")
def unigram_model(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> RowModel:
    return train(corpus_file, tmp_path_factory.mktemp("unigram") / "m", Settings(features="ngram(0)", threads=1))


class TestUnigrams(LanguageModelTests):
    """A model without context, which has the smallest span."""

    @pytest.fixture
    def model(self, unigram_model: RowModel) -> RowModel:
        return unigram_model


class TestClosedVocabulary(LanguageModelTests):
    @pytest.fixture
    def model(self, closed_model: RowModel) -> RowModel:
        return closed_model

    def test_unknown_words_are_not_predicted(self, model: RowModel) -> None:
        assert model.distribution(model.context("the"))[model.vocabulary.unknown] == 0

    def test_unknown_words_are_left_out_of_a_score(self, model: RowModel) -> None:
        (words,) = model.score_words(["the purple cat"])
        assert math.isnan(words[1][1])
        assert model.score("the purple cat") == pytest.approx(words[0][1] + words[2][1] + words[3][1])
        assert model.explain("the purple cat")[1].probability == 0


@pytest.fixture(scope="module")
def cache_model(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> RowModel:
    """A model of long lines that repeat themselves, with caches that reach less far."""
    folder = tmp_path_factory.mktemp("cache")
    lines = sorted(corpus_file.read_text().splitlines() * 2)  # enough words for a gate
    long = [" ".join(lines[i : i + 20]) for i in range(0, len(lines), 20)]
    (folder / "text").write_text("\n".join(long) + "\n")
    features = "ngram(0..2) + class(r=1, a=0) + cache(a=0..2, words=25, half=10) + cache(a=0, words=12, half=4)"
    return train(folder / "text", folder / "m", Settings(features=features, classes=4, threads=1), dev=folder / "text")


class TestCache(LanguageModelTests):
    """A model whose states are longer than its features."""

    @pytest.fixture
    def model(self, cache_model: RowModel) -> RowModel:
        return cache_model

    def test_threads_do_not_change_scores(self, model: LanguageModel) -> None:
        """The last bits of a gate depend on how many events it weighs together."""
        tokens = encode_lines([self.SENTENCE] * 500, model.vocabulary).tokens
        assert model.probabilities(tokens) == pytest.approx(model.probabilities(tokens, threads=3), rel=1e-6)

    def test_words_of_the_text_are_explained(self, model: RowModel) -> None:
        assert model.manifest["requires"] == ["cache"]
        assert model.state_width == 27
        parts = {part.feature: part for part in model.explain("the cat sees the cat")[4].parts}
        assert parts["[cache the]"].share == pytest.approx(parts["[cache the]"].weight), "only cat has followed the"
        assert {"[cache]", "[the]"} <= set(parts)
        assert "[cache sees the]" not in parts


@pytest.fixture(scope="module")
def family_model(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> RowModel:
    assert callable(suffix_pair)  # the import registers it
    path = tmp_path_factory.mktemp("family") / "m"
    return train([corpus_file], path, Settings(features="ngram(0..1) + family(suffix_pair)", threads=1))


class TestFamily(LanguageModelTests):
    @pytest.fixture
    def model(self, family_model: RowModel) -> RowModel:
        return family_model

    def test_another_family_of_that_name_is_refused(self, model: RowModel, monkeypatch: pytest.MonkeyPatch) -> None:
        other = feature_family("suffix_pair", span=2)
        monkeypatch.setattr("snm.features.families._families", {})
        other(
            lambda vocabulary: lambda tokens, position: np.where(position > 1, tokens * 0 + np.uint64(7), np.uint64(0))
        )
        with pytest.raises(FormatError, match="gives other keys"):
            snm.load(model.path)

    def test_the_family_is_explained(self, model: RowModel) -> None:
        assert "[suffix_pair:0]" in [part.feature for part in model.explain("the cat sees")[2].parts]


@pytest.fixture(scope="module")
def field_model(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> RowModel:
    folder = tmp_path_factory.mktemp("fields")
    lines = corpus_file.read_text().splitlines()
    (folder / "text").write_text("\n".join(f"speaker={line[0]} {line}" for line in lines) + "\n")
    settings = Settings(features="ngram(0..2) + class(r=1, a=0)", classes=4, fields="speaker", threads=1)
    return train(folder / "text", folder / "m", settings, dev=folder / "text")


class TestFields(LanguageModelTests):
    """A model whose lines may have fields, on lines that have none."""

    @pytest.fixture
    def model(self, field_model: RowModel) -> RowModel:
        return field_model

    def test_threads_do_not_change_scores(self, model: LanguageModel) -> None:
        """The last bits of a gate depend on how many events it weighs together."""
        tokens = encode_lines([self.SENTENCE] * 500, model.vocabulary).tokens
        assert model.probabilities(tokens) == pytest.approx(model.probabilities(tokens, threads=3), rel=1e-6)


@pytest.mark.parametrize("preset", [*PRESETS, SMALL_SKIPS])
def test_every_preset_sums_to_one(preset: str, corpus_file: Path, tmp_path: Path) -> None:
    model = train([corpus_file], tmp_path / "m", Settings(features=preset, threads=1))
    text = encode_lines(["the old man likes purple fish sees a dog and the cat likes the old man"], model.vocabulary)
    assert check_sums(model, text, 100).worst < 1e-6


def test_a_model_equals_the_reference(corpus_file: Path, tmp_path: Path) -> None:
    """All steps from a file to a probability, without training, against the reference."""
    settings = Settings(features=SMALL_SKIPS, threads=1, training=snm.TrainingSettings(passes=0))
    model = train([corpus_file], tmp_path / "m", settings)
    text = encode_files([corpus_file], model.vocabulary)
    few = Text(text.tokens[: np.flatnonzero(text.tokens == 1)[4] + 1], 5)
    counts = paper.count(model.spec, paper.to_sentences(text.tokens), len(model.vocabulary))
    m = {f: {j: c / sum(row.values()) for j, c in row.items()} for f, row in counts.items()}
    assert model.perplexity(few).ppl == pytest.approx(
        paper.perplexity(model.spec, m, paper.to_sentences(few.tokens)), rel=1e-6
    )


@pytest.mark.parametrize("weight_bits", [8, 16])
def test_rows_of_all_lengths_are_scored_and_read_alike(weight_bits: int, tmp_path: Path) -> None:
    """Rows of 1 to 32 links in a page, with targets of two and of four bytes, and long rows."""
    often, rare = 66_000, 70_000  # words in the order of their ids: those from 65,536 on take four bytes
    random = np.random.default_rng(1)
    followers = {
        f"{kind}{n}": random.choice(np.arange(low, high), n, replace=False).tolist()
        for kind, low, high in (("near", 0, 300), ("far", often, rare))
        for n in (*range(1, 34), 40, 100)
    }
    lines = [" ".join([f"w{word}"] * 9) for word in range(often)]
    lines += [f"{context} w{word}" for context, words in followers.items() for word in words for _ in range(2)]
    lines += [f"{context} w{words[0]}" for context, words in followers.items()]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    settings = Settings(features="ngram(0..1)", min_count=1, weight_bits=weight_bits, threads=1)
    model = snm.train(tmp_path / "text", tmp_path / "m", settings)
    assert isinstance(model, RowModel)
    assert sum(model.vocabulary.id_of(f"w{words[-1]}") >= 1 << 16 for words in followers.values()) > 10
    for context, words in followers.items():
        p = model.distribution(model.context(context))
        asked = [f"w{word}" for word in {*words[:12], *words[-3:], 5, 299, often - 1, rare - 1}]
        scored = model.probabilities(encode_lines([f"{context} {word}" for word in asked], model.vocabulary).tokens)
        for word, found in zip(asked, scored[2::4], strict=True):
            assert found == pytest.approx(p[model.vocabulary.id_of(word)], rel=1e-5)
        stepped = model.expand(model.state_array([model.step(model.start(), context)[1]]), asked)
        assert 10 ** stepped[0] == pytest.approx(scored[2::4], rel=1e-5)


def test_beam_kernels_are_cached_for_all_processes() -> None:
    """Numba's cache does not recognise a kernel that closes over another in a new process."""
    expand, _ = kernels_of("uint32", "uint32", "uint8")
    assert {type(cell.cell_contents) for cell in expand.py_func.__closure__} == {type}
