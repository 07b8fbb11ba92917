"""The edge of the library: wrong types, foreign states, copies, closed models. Nothing crashes or is silently wrong."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import snm
from snm.baselines.backoff.model import BackoffModel
from snm.errors import ClosedModel, FormatError, InputError, InputNotFound, ModelNotFound, SettingsError, SpecError
from snm.evaluation import check_sums
from snm.scoring.model import RowModel, SnmModel
from snm.settings import Settings
from snm.text.encoding import encode_lines
from tests.conftest import train
from tests.test_cli import fails, ok, run

GOLDEN = Path(__file__).parent / "golden" / "format3"
SENTENCE = "the cat sees fish"


@pytest.fixture(scope="module")
def model(model_path: Path) -> SnmModel:
    opened = snm.load(model_path)
    assert isinstance(opened, SnmModel)
    return opened


@pytest.fixture(scope="module")
def other(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory, model: SnmModel) -> RowModel:
    """A model with other words, whose states have the same width."""
    text = corpus_file.parent / "other.txt"
    text.write_text(corpus_file.read_text().replace("fish", "cheese").replace("cake", "bread"))
    return train(text, tmp_path_factory.mktemp("other") / "m", Settings(features=str(model.spec), threads=1))


@pytest.fixture(scope="module", params=["snm", "backoff"])
def row_model(request: pytest.FixtureRequest, model: SnmModel) -> RowModel:
    opened = model if request.param == "snm" else snm.load(GOLDEN / "backoff")
    assert isinstance(opened, RowModel)
    return opened


class TestStates:
    def test_a_state_of_another_vocabulary_is_refused(self, model: SnmModel, other: RowModel) -> None:
        foreign = other.start()
        assert len(foreign) == len(model.start())
        with pytest.raises(SettingsError, match="state of another vocabulary"):
            model.step(foreign, "the")
        states = np.frombuffer(foreign, np.uint32)[None].copy()
        for call in (
            lambda: model.expand(states, ["the"]),
            lambda: model.steps(states, ["the"]),
            lambda: model.follow(states, ["the"], np.array([0])),
        ):
            with pytest.raises(SettingsError, match="state of another vocabulary"):
                call()

    @given(st.data())
    def test_random_bytes_and_ids_are_refused_or_scored_but_never_crash(
        self, row_model: RowModel, data: st.DataObject
    ) -> None:
        width = len(row_model.start())
        state = data.draw(st.binary(max_size=2 * width) | st.binary(min_size=width, max_size=width))
        with pytest.raises(SettingsError, match="expected one that start"):
            row_model.step(state, "the")
        ids = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=width // 4, max_size=width // 4))
        ids = [i % (2 * len(row_model.vocabulary)) for i in ids]
        tagged = (np.array(ids, np.uint32) ^ np.uint32(row_model.vocabulary.tag)).tobytes()
        if max(ids) < len(row_model.vocabulary):
            assert row_model.step(tagged, "the")[0] < 0
        else:
            with pytest.raises(SettingsError, match="expected one that start"):
                row_model.step(tagged, "the")

    @pytest.mark.parametrize("state", [None, 3, "text", [], np.zeros(5, np.uint32), bytearray(b"1234")])
    def test_a_state_of_another_type_is_refused(self, row_model: RowModel, state: Any) -> None:
        with pytest.raises(SettingsError, match="expected one that start"):
            row_model.step(state, "the")

    def test_words_may_be_ids_and_nothing_else(self, row_model: RowModel) -> None:
        number = row_model.vocabulary.id_of("the")
        assert row_model.step(row_model.start(), number) == row_model.step(row_model.start(), "the")
        for wrong in (-1, len(row_model.vocabulary), 1.5, None, b"the", ["the"]):
            with pytest.raises(SettingsError, match="is no word"):
                row_model.step(row_model.start(), wrong)  # type: ignore[arg-type]

    def test_both_spellings_of_the_sentence_end(self, row_model: RowModel) -> None:
        assert row_model.step(row_model.start(), "</S>") == row_model.step(row_model.start(), "</s>")

    def test_arrays_of_wrong_ids_types_and_shapes_are_refused(self, row_model: RowModel) -> None:
        states = row_model.state_array([row_model.start()])
        for wrong in (states[0], states.astype(np.int64), states[:, :-1].copy(), np.full_like(states, 2**31)):
            with pytest.raises(SettingsError):
                row_model.expand(wrong, ["the"])
        for words in (np.array([2**31], np.uint32), np.array([-1]), np.array([0.5])):
            with pytest.raises(SettingsError):
                row_model.expand(states, words)
        with pytest.raises(SettingsError):
            row_model.follow(states, ["the"], np.array([7]))


class TestSentences:
    def test_any_iterable_of_sentences(self, model: SnmModel, tmp_path: Path) -> None:
        lines = [SENTENCE, "a dog", ""]
        expected = model.score_sentences(lines)
        (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
        with open(tmp_path / "lines.txt") as file:
            assert model.score_sentences(file) == pytest.approx(expected, nan_ok=True)
        ids = [model.vocabulary.ids_of(line.split()) for line in lines]
        for given_as in (iter(lines), tuple(lines), [line.split() for line in lines], ids, tmp_path / "lines.txt"):
            assert model.score_sentences(given_as) == pytest.approx(expected, nan_ok=True)
        assert model.perplexity(iter(lines)).ppl == model.perplexity(tmp_path / "lines.txt").ppl
        assert model.score(SENTENCE.split()) == model.score(SENTENCE)

    @pytest.mark.parametrize("wrong", [SENTENCE, SENTENCE.encode(), 3, None, [3], [None], [["a b"]], [[""]], [[9999]]])
    def test_what_is_no_text_is_refused(self, model: SnmModel, wrong: Any) -> None:
        for call in (model.score_sentences, model.score_words, model.perplexity):
            with pytest.raises(InputError):
                call(wrong)

    def test_characters_that_cannot_be_encoded_are_refused(self, model: SnmModel) -> None:
        with pytest.raises(InputError, match="no character"):
            model.score("the \ud800 cat")

    def test_training_on_sentences(self, corpus_file: Path, tmp_path: Path) -> None:
        lines = corpus_file.read_text().split("\n")
        settings = Settings(order=3, threads=1)
        expected = train(corpus_file, tmp_path / "a", settings).manifest["files"]
        for number, sentences in enumerate(
            (iter(lines), ((*line.split(),) for line in lines), [s.split() for s in lines])
        ):
            assert train(sentences, tmp_path / str(number), settings).manifest["files"] == expected
        with pytest.raises(InputError, match="NUL"):
            train(iter(["a \0 b"]), tmp_path / "b", settings)
        with pytest.raises(InputNotFound, match="no such file"):
            train(lines[:3], tmp_path / "b", settings)


class TestModels:
    @pytest.mark.parametrize("name", ["snm", "backoff", "hsme", "lstm", "mixture"])
    def test_a_model_is_pickled_copied_and_compared(self, name: str) -> None:
        opened = snm.load(GOLDEN / name)
        expected = opened.score("the old stone")
        if isinstance(opened, RowModel):
            opened.step(opened.start(), "the")  # its record has addresses
        for again in (pickle.loads(pickle.dumps(opened)), copy.deepcopy(opened), copy.copy(opened)):
            assert again == opened
            assert hash(again) == hash(opened)
            assert again.score("the old stone") == expected
        assert opened != snm.load(GOLDEN / "snm-long-rows")

    def test_a_copy_outlives_its_original(self) -> None:
        opened = snm.load(GOLDEN / "snm")
        score = opened.step(opened.start(), "the")
        again = copy.deepcopy(opened)
        opened.close()
        del opened
        assert again.step(again.start(), "the") == score

    def test_a_closed_model_says_so(self) -> None:
        with snm.load(GOLDEN / "snm") as opened:
            state = opened.start()
            assert opened.step(state, "the")[0] < 0
        opened.close()
        for name in ("score", "start", "step", "vocabulary", "probabilities", "manifest"):
            with pytest.raises(ClosedModel, match="is closed; open it again"):
                getattr(opened, name)
        assert "closed" in repr(opened)
        with pytest.raises(ClosedModel):
            pickle.dumps(opened)

    def test_eight_threads(self, model: SnmModel) -> None:
        lines = [SENTENCE, "a dog likes the cat", "the old man eats cake"]
        states = model.state_array([model.start()] * 3)
        expected = model.score_sentences(lines), model.expand(states, ["the", "a"]).tolist()
        wrong: list[Any] = []

        def work() -> None:
            for _ in range(30):
                state, total = model.start(), 0.0
                for word in [*SENTENCE.split(), "</S>"]:
                    p, state = model.step(state, word)
                    total += p
                found = model.score_sentences(lines), model.expand(states, ["the", "a"]).tolist()
                if found != expected or abs(total - expected[0][0]) > 1e-5:
                    wrong.append(found)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_the_prompt_comes_first(self, model: SnmModel) -> None:
        assert model.generate("the cat", seed=1).startswith("the cat")
        with pytest.raises(TypeError):
            model.generate("the", 1)  # type: ignore[call-arg]


class TestErrors:
    def test_errors_are_built_in_errors_too(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="expected 1 or more"):
            Settings(threads=0)
        with pytest.raises(FileNotFoundError):
            snm.load(tmp_path / "none")
        with pytest.raises(FileNotFoundError):
            snm.train(tmp_path / "none.txt", tmp_path / "m")
        assert issubclass(ModelNotFound, FormatError)
        assert issubclass(SpecError, ValueError)

    def test_a_missing_file_is_not_repeated_at_length(self, tmp_path: Path) -> None:
        assert len(fails("train", "x" * 5_000_000, "-o", tmp_path / "m")) < 1000


class TestFiles:
    def test_an_export_that_fails_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target = tmp_path / "model.arpa"
        target.write_text("precious")

        def fail(*arguments: object) -> None:
            arguments[1].write("\\data\\\n")  # type: ignore[attr-defined]
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("snm.baselines.backoff.arpa.write_arpa", fail)
        assert run("export", GOLDEN / "backoff", target).exit_code == 1
        assert target.read_text() == "precious"
        assert [path.name for path in tmp_path.iterdir()] == ["model.arpa"]
        monkeypatch.undo()
        ok("export", GOLDEN / "backoff", target)
        assert target.read_text().startswith("\\data\\")

    @pytest.mark.parametrize("command", ["ppl", "score", "info", "train"])
    def test_files_of_the_current_folder_are_not_run(self, command: str, tmp_path: Path) -> None:
        for name in ("lzma", "numpy", "click", "threadpoolctl", "json", "snm"):
            (tmp_path / f"{name}.py").write_text(f"open('run-{name}', 'w').close()\n")
        (tmp_path / "text.txt").write_text("the old stone\n" * 50)
        arguments = ["text.txt", "-o", "m"] if command == "train" else [str(GOLDEN / "backoff"), "text.txt"]
        if command == "info":
            arguments = arguments[:1]
        program = Path(sys.executable).with_name("snm")
        if not program.exists():
            pytest.skip("the command is not installed")
        subprocess.run([program, command, *arguments], cwd=tmp_path, check=True, capture_output=True)
        assert not list(tmp_path.glob("run-*"))


TINY = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(" ".join), min_size=1, max_size=4)


class TestSums:
    """Probabilities sum to one on random tiny corpora, for every family of counts and every setting."""

    @given(TINY, st.sampled_from(["snm", "kn", "katz", "sbo"]), st.integers(1, 4), st.booleans())
    def test_probabilities_sum_to_one(
        self, tmp_path_factory: pytest.TempPathFactory, lines: list[str], model: str, order: int, closed: bool
    ) -> None:
        folder = tmp_path_factory.mktemp("tiny")
        settings = Settings(model=model, order=order, closed=closed, min_count=1, threads=1)
        made = train(iter(lines), folder / "m", settings)
        report = check_sums(made, encode_lines([*lines, "a b c a", "d"], made.vocabulary), 50)
        assert report.worst < 1e-5

    def test_katz_where_a_context_has_seen_every_word(self, tmp_path: Path) -> None:
        settings = Settings(model="katz", order=3, closed=True, min_count=1, threads=1)
        made = train(iter(["b", "b b"]), tmp_path / "m", settings)
        assert isinstance(made, BackoffModel)
        assert check_sums(made, encode_lines(["b", "b b", "b b b"], made.vocabulary), 50).worst < 1e-6


class TestLimits:
    @pytest.mark.parametrize(
        "options", [("--threads", "99999999999"), ("--prune", "99999999999999999999"), ("--max-words", "9" * 30)]
    )
    def test_numbers_out_of_range_are_refused_at_once(
        self, options: tuple[str, str], corpus_file: Path, tmp_path: Path
    ) -> None:
        assert options[0].lstrip("-").replace("-", "_") in fails(
            "train", corpus_file, "-o", tmp_path / "m", *options
        ).replace("-", "_")
        name = options[0].lstrip("-").replace("-", "_")
        with pytest.raises(SettingsError, match=f"{name} is .*; expected .* or less"):
            Settings(**{name: int(options[1])})  # type: ignore[arg-type]


class TestReplacing:
    def test_force_replaces_a_model_and_nothing_else(self, corpus_file: Path, tmp_path: Path) -> None:
        path, settings = tmp_path / "m", Settings(order=2, threads=1)
        train(corpus_file, path, settings)
        train(corpus_file, path, settings, force=True)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
        (path / "a" / "b").mkdir(parents=True)
        (path / "a" / "b" / "more.txt").write_text("precious too")
        with pytest.raises(SettingsError, match=r"more\.txt is not part of the model"):
            train(corpus_file, path, settings, force=True)
        (path / "a" / "b" / "more.txt").unlink()
        (path / "notes.txt").write_text("precious")
        with pytest.raises(SettingsError, match=r"notes\.txt is not part of the model"):
            train(corpus_file, path, settings, force=True)
        assert (path / "notes.txt").read_text() == "precious"

    def test_a_folder_with_a_manifest_of_another_program_is_left_alone(self, corpus_file: Path, tmp_path: Path) -> None:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "manifest.json").write_text('{"name": "a web page", "files": {}}')
        with pytest.raises(SettingsError, match="is not a model of snm"):
            train(corpus_file, tmp_path / "site", Settings(order=2, threads=1), force=True)
        assert (tmp_path / "site" / "manifest.json").exists()

    def test_a_mixture_is_replaced_with_its_members(self, tmp_path: Path, corpus_file: Path) -> None:
        text = corpus_file.parent / "golden.txt"
        text.write_text("the old stone holds the lantern\n" * 5)
        for _ in range(2):
            snm.mix([GOLDEN / "snm", GOLDEN / "backoff"], text, tmp_path / "mixed", force=True)
        assert snm.load(tmp_path / "mixed").score("the old stone") < 0

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges two folders in one step")
    def test_there_is_a_model_at_every_moment(self, corpus_file: Path, tmp_path: Path) -> None:
        path, settings = tmp_path / "m", Settings(order=2, model="kn", threads=1)
        train(corpus_file, path, settings)
        stop, looked, missing = threading.Event(), 0, 0

        def look() -> None:
            nonlocal looked, missing
            while not stop.is_set():
                looked, missing = looked + 1, missing + (not (path / "manifest.json").exists())

        watcher = threading.Thread(target=look)
        watcher.start()
        for _ in range(10):
            train(corpus_file, path, settings, force=True)
        stop.set()
        watcher.join()
        assert looked > 10
        assert missing == 0

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no model for a moment")
    def test_a_reader_finds_one_version_of_a_model(self, corpus_file: Path, tmp_path: Path) -> None:
        path, stop = tmp_path / "m", threading.Event()
        found: set[float] = set()
        settings = [Settings(order=n, model="kn", min_count=1, threads=1) for n in (2, 3)]
        expected = {train(corpus_file, tmp_path / str(i), s).score(SENTENCE) for i, s in enumerate(settings)}
        train(corpus_file, path, settings[0])

        def read() -> None:
            while not stop.is_set():
                found.add(snm.load(path).score(SENTENCE))

        reader = threading.Thread(target=read)
        reader.start()
        for i in range(1, 11):
            train(corpus_file, path, settings[i % 2], force=True)
        stop.set()
        reader.join()
        assert found
        assert found <= expected, "one version or the other, no mixture of them"


class TestImport:
    def test_numbers_that_are_no_probabilities(self, tmp_path: Path) -> None:
        lines = (Path(__file__).parent / "golden" / "kneser-ney.arpa").read_text().split("\n")
        number = next(i for i, line in enumerate(lines) if line.count("\t") == 2)
        for wrong in ("nan", "inf", "0.5", "1e999"):
            parts = lines[number].split("\t")
            damaged = [*lines[:number], "\t".join([wrong, *parts[1:]]), *lines[number + 1 :]]
            (tmp_path / "a.arpa").write_text("\n".join(damaged))
            assert "expected finite numbers, the first not above 0" in fails(
                "import", tmp_path / "a.arpa", "-o", tmp_path / "m"
            )
        twice = [*lines[: number + 1], *lines[number:]]
        counted = "\n".join(twice)
        total = int(lines[1].partition("=")[2])
        (tmp_path / "a.arpa").write_text(counted.replace(f"ngram 1={total}", f"ngram 1={total + 1}", 1))
        assert "twice" in fails("import", tmp_path / "a.arpa", "-o", tmp_path / "m")

    @pytest.mark.parametrize(
        "content",
        [
            b"\\data\\\nngram 1=x\n\n", b"\\data\\\nngram 1=99999999999999\n\n\\1-grams:\n-1\ta\n",
            "\\data\\\n".encode("utf-16"), b"mmap lm http://kheafield.com/code format version 5\n\x00\xff", b"",
            b"\x1f\x8b\x08\x00cut", b"\xfd7zXZ\x00cut", b"x" * 3_000_000,
        ],
    )  # fmt: skip
    def test_what_is_no_arpa_file_is_refused_in_a_line(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "a.arpa").write_bytes(content)
        assert len(fails("import", tmp_path / "a.arpa", "-o", tmp_path / "m")) < 600
        assert not (tmp_path / "m").exists()
