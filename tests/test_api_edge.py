"""The edge of the Python interface: odd arguments, ARPA files as models, stateful models, threads, public names."""

from __future__ import annotations

import ast
import bz2
import copy
import gzip
import inspect
import lzma
import math
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm.errors import FormatError, InputError, ModelNotFound, SettingsError, SnmError
from snm.progress import ignore, silent
from tests.test_cli import fails, ok

GOLDEN = Path(__file__).parent / "golden"
ARPA = GOLDEN / "kneser-ney.arpa"
KENLM = b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(100)
KINDS = ("snm", "backoff", "hsme", "lstm", "mixture")
SENTENCES = ["the old stone holds the lantern", "a lantern", "the stone"]


def golden(kind: str) -> snm.LanguageModel:
    return snm.load(GOLDEN / "format3" / kind)


@pytest.fixture(scope="module")
def arpa_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text with the words of the golden ARPA file."""
    words = [w for w in snm.load(ARPA).vocabulary.words if not w.startswith("<")]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(" ".join(words[i : i + 4]) for i in range(0, 40, 4)) + "\n")
    return path


class Column:
    """Like a column of a table: iterable, with a length and a shape, but no list."""

    shape = (1,)

    def __iter__(self) -> Iterator[str]:
        return iter(["the old"])

    def __len__(self) -> int:
        return 1


class Table(Column):
    """Like a table: iterating over it gives the names of its columns."""

    columns = ("the", "old")


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "3": lambda: 3,
    "-1": lambda: -1,
    "10**18": lambda: 10**18,
    "10**30": lambda: 10**30,
    "1.5": lambda: 1.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "1j": lambda: 1j,
    "text": lambda: "the",
    "number as text": lambda: "2",
    "empty text": lambda: "",
    "surrogate": lambda: "\ud800",
    "NUL": lambda: "a\0b",
    "long text": lambda: "x" * 5000,
    "bytes": lambda: b"the",
    "bytearray": lambda: bytearray(b"the"),
    "object": object,
    "function": lambda: len,
    "ellipsis": lambda: ...,
    "slice": lambda: slice(3),
    "path": lambda: Path("none"),
    "empty list": list,
    "nested list": lambda: [[]],
    "words": lambda: [["the"], ["a", "b"]],
    "ids": lambda: [[3, 4], [5, 6]],
    "ragged ids": lambda: [[1], [2, 3]],
    "mixed": lambda: ["the", 3],
    "float list": lambda: [3.0],
    "dict": lambda: {"the": 1},
    "set": lambda: {"the"},
    "iterator": lambda: iter(["the"]),
    "empty iterator": lambda: iter([]),
    "range": lambda: range(3),
    "column": Column,
    "table": Table,
    "int64": lambda: np.int64(3),
    "float32": lambda: np.float32(2.5),
    "array of no dimension": lambda: np.array(3),
    "tokens": lambda: np.array([0, 3, 4]),
    "float array": lambda: np.array([0.5]),
    "bool array": lambda: np.array([True]),
    "object array": lambda: np.array([None]),
    "masked array": lambda: np.ma.array([3]),
    "2-D array": lambda: np.array([[3, 4]]),
    "negative ids": lambda: np.array([-1]),
    "large ids": lambda: np.array([2**32, 2**32 + 3]),
    "empty array": lambda: np.zeros(0, np.float32),
}


def refuses_or_works(name: str, call: Callable[[], Any]) -> None:
    """Call it: a result, an SnmError of one short line, or a TypeError that names the argument."""
    said = ""
    try:
        call()
    except SnmError as error:
        said = str(error)
        assert len(said) > 10
    except TypeError as error:
        said = str(error)
        assert name in said
    assert len(said) < 600
    assert "\n" not in said


PLAIN = {
    "tokens": [0, 3, 4, 1], "context": [0, 3], "sentence": "the old", "sentences": ["the old"], "text": ["the old"],
    "prompt": "the", "k": 3, "threads": 1, "seed": 1, "max_words": 3, "temperature": 1.0, "unknown": False,
    "engine": "cpu", "on_error": "fail", "spelled": False, "word": "the",
    "words": ["the", "old"], "chosen": np.array([0]), "fields": "", "device": "cpu", "labels": ["the", "old"],
}  # fmt: skip
METHODS = [
    name for name, value in inspect.getmembers(snm.LanguageModel, callable)
    if not name.startswith("_") and name not in ("adapt", "close", "faults")
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_method_with_odd_arguments(kind: str, method: str) -> None:
    model = golden(kind)
    call = getattr(model, method)
    plain: dict[str, Any] = dict(PLAIN)
    plain["state"] = model.start()
    plain["states"] = [model.start()] if method == "state_array" else model.state_array([model.start()])
    parameters = list(inspect.signature(call).parameters)
    for parameter in parameters:
        for make in ODD.values():
            arguments = {**{name: plain[name] for name in parameters}, parameter: make()}
            refuses_or_works(parameter, lambda arguments=arguments: call(**arguments))  # type: ignore[misc]


QUICK = snm.Settings(model="sbo", order=1, threads=1)
GATED = snm.Settings(order=1, min_count=1, gate=4, threads=1)
COUNTING = snm.Settings(order=1, vocab="words", threads=1)


def counted() -> snm.CountedText:
    """The text of `test_a_function_with_odd_arguments`, counted, in the folder `c`."""
    return snm.count_text("text.txt", "c", COUNTING, force=True)


def merge_one(**arguments: Any) -> Any:
    """`merge_counts` with a folder to merge."""
    counted()
    return snm.merge_counts(**arguments)


def train_counts(**arguments: Any) -> Any:
    """`train` with a folder of counts."""
    counted()
    return snm.train(output="m", settings=snm.Settings(gate=0, threads=1), force=True, **arguments)


def counted_text(path: Any) -> Any:
    """`CountedText` with a folder to open."""
    counted()
    return snm.CountedText(path)


def train_source(source: Any) -> Any:
    """`train` with two named sources."""
    return snm.train({"source": source, "b": "text.txt"}, "s", GATED, dev="text.txt", force=True)


FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "load": (snm.load, {"path": GOLDEN / "format3" / "snm", "progress": silent}),
    "train": (snm.train, {"sources": "text.txt", "output": "m", "settings": QUICK, "force": True, "notify": ignore}),
    "train with dev": (snm.train, {"dev": "text.txt", "sources": "text.txt", "output": "d", "settings": GATED}),
    "mix": (snm.mix, {"models": [GOLDEN / "format3" / "snm", GOLDEN / "format3" / "backoff"], "dev": "text.txt",
                      "output": "x", "force": True, "threads": 1}),
    "verify": (snm.verify, {"path": GOLDEN / "format3" / "backoff", "sources": "text.txt", "contexts": 3}),
    "import_arpa": (snm.import_arpa, {"path": ARPA, "output": "i", "force": True}),
    "export_arpa": (snm.export_arpa, {"model": golden("backoff"), "path": "e.arpa", "text": "text.txt", "order": 2,
                                      "size": 100_000, "threads": 1, "on_error": "fail"}),
    "prune": (snm.prune, {"model": golden("backoff"), "output": "p", "size": None, "links": 30, "loss": None,
                          "dev": "text.txt", "threads": 1, "force": True}),
    "adapt": (snm.adapt, {"model": golden("snm"), "output": "a", "dev": "text.txt", "text": None, "name": "text",
                          "min_count": 1, "memory": 1 << 29, "threads": 1, "seed": 1, "force": True}),
    "train a source": (train_source, {"source": "text.txt"}),
    "filter_text": (snm.filter_text, {"model": golden("backoff"), "source": "text.txt", "output": None, "max_ppl": 1e9,
                                      "min_ppl": None, "field": "text", "format": None, "spelled": False,
                                      "threads": 1, "on_error": "fail"}),
    "write_vocabulary": (snm.write_vocabulary, {"sources": "text.txt", "output": "v", "min_count": 1, "max_words": 5,
                                                "on_error": "fail", "memory": 1 << 29, "threads": 1}),
    "count_text": (snm.count_text, {"sources": "text.txt", "output": "c", "settings": COUNTING, "force": True}),
    "merge_counts": (merge_one, {"folders": ["c"], "output": "s", "memory": 1 << 29, "threads": 1, "force": True}),
    "train counts": (train_counts, {"sources": None, "counts": "c"}),
    "CountedText": (counted_text, {"path": "c"}),
    "Vocabulary": (snm.Vocabulary, {"words": ["a", "b"], "closed": False, "document": False}),
    "id_of": (snm.Vocabulary(["a"]).id_of, {"word": "a"}),
    "ids_of": (snm.Vocabulary(["a"]).ids_of, {"words": ["a"]}),
    "FeatureSpec": (snm.FeatureSpec, {"text": "small"}),
    "MetafeatureSet.parse": (snm.MetafeatureSet.parse, {"text": "all", "feature_buckets": "single",
                                                        "link_buckets": "half", "merge": True}),
    "feature_family": (snm.feature_family, {"name": "odd_family", "columns": 1, "span": 3}),
    "paper_settings": (snm.paper_settings, {"features": "snm2", "metafeatures": "all", "feature_buckets": "double",
                                            "link_buckets": "double", "merge": False, "optimiser": "sgd"}),
    **{kind.__name__: (kind, {field.name: getattr(kind(), field.name) for field in fields(kind)})
       for kind in (snm.Settings, snm.TrainingSettings, snm.NetworkSettings)},
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_with_odd_arguments(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the old stone holds the lantern\n" * 5)
    Path("words").write_text("the\nold\nstone\n")
    function, plain = FUNCTIONS[name]
    function(**plain)
    for parameter in ["dev"] if name == "train with dev" else plain:
        for make in ODD.values():
            arguments = {**plain, parameter: make()}
            refuses_or_works(parameter, lambda arguments=arguments: function(**arguments))  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_ids_reach_no_kernel(kind: str) -> None:
    """Each of these was used as an index, rounded or taken modulo 2**32."""
    model = golden(kind)
    words = len(model.vocabulary)
    for wrong in ([0, words, 1], [0, 2**32, 1], [0, -1, 1], [0, 3.5, 1], [True], [[0, 3]], "the", None):
        with pytest.raises(SettingsError):
            model.probabilities(wrong)  # type: ignore[arg-type]
        with pytest.raises(SettingsError):
            model.distribution(wrong)  # type: ignore[arg-type]
    for context in ([], [3], [0, 3, 0, 4]):
        with pytest.raises(SettingsError, match="make contexts with"):
            model.distribution(context)  # type: ignore[arg-type]
    expected = model.probabilities(np.array([0, 3, 4, 1]))
    locked = np.array([0, 9, 3, 9, 4, 9, 1, 9], ">u8")[::2]
    locked.flags.writeable = False
    assert np.array_equal(model.probabilities(locked), expected)
    assert len(model.probabilities([])) == 0  # type: ignore[arg-type]


def test_wrong_ids_of_a_decoder() -> None:
    model = snm.load(GOLDEN / "format3" / "snm")
    states = model.state_array([model.start()])
    for wrong in (np.array([2**32 + 3]), np.array([-(2**32)]), np.array([True])):
        with pytest.raises(SettingsError):
            model.expand(states, wrong)
    with pytest.raises(SettingsError, match="expected a list of whole numbers"):
        model.follow(states, ["the", "old"], np.array([0.9]))
    with pytest.raises(SettingsError, match="is no word"):
        model.step(model.start(), True)


def test_numbers_of_numpy_are_written_to_the_manifest(tmp_path: Path) -> None:
    """JSON has no NumPy numbers: training ended in an error."""
    training = snm.TrainingSettings(rate=np.float32(0.5), passes=np.int64(1))  # type: ignore[arg-type]
    settings = snm.Settings(order=np.int64(2), gate=np.int32(0), min_count=np.uint8(1), training=training, threads=1)  # type: ignore[arg-type]
    model = snm.train(iter(SENTENCES * 20), tmp_path / "m", settings)
    assert model.manifest["training"]["rate"] == 0.5


@pytest.mark.parametrize(
    "setting", [{"threads": None}, {"seed": None}, {"closed": "no"}, {"training": {}}, {"gate": 2.0}]
)
def test_settings_of_a_wrong_type_are_refused_at_once(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(setting))):
        snm.Settings(**setting)


def test_generate_ends_where_only_the_unknown_word_can_follow(tmp_path: Path) -> None:
    (tmp_path / "a.arpa").write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-99\t<s>\n-99\t</s>\n0\t<unk>\n\n\\end\\\n")
    assert snm.load(tmp_path / "a.arpa").generate("a", seed=1) == "a"


class TestArpaAsModel:
    @pytest.mark.parametrize("packed", [None, gzip, bz2, lzma], ids=["plain", "gz", "bz2", "xz"])
    def test_it_scores_as_the_imported_model(self, packed: Any, tmp_path: Path, arpa_text: Path) -> None:
        file = tmp_path / "a.model"  # recognised by its content, not by its name
        file.write_bytes(packed.compress(ARPA.read_bytes()) if packed else ARPA.read_bytes())
        model = snm.load(file)
        imported = snm.import_arpa(ARPA, tmp_path / "imported")
        assert model.perplexity(arpa_text).ppl == imported.perplexity(arpa_text).ppl
        assert isinstance(model, snm.BackoffModel)
        assert model.path == file
        assert str(file) in repr(model)

    def test_nothing_stays_in_the_temporary_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        model = snm.load(ARPA)
        assert list(tmp_path.iterdir()) == []
        assert model.score("the") < 0

    def test_it_is_pickled_and_copied_by_its_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(GOLDEN)
        model = snm.load(ARPA.name)
        pickled = pickle.dumps(model)
        monkeypatch.chdir("/")
        for again in (pickle.loads(pickled), copy.deepcopy(snm.load(ARPA))):
            assert again == model
            assert again.score("the") == model.score("the")

    def test_every_command_takes_it(self, tmp_path: Path, arpa_text: Path) -> None:
        packed = tmp_path / "a.arpa.gz"
        packed.write_bytes(gzip.compress(ARPA.read_bytes()))
        assert "perplexity" in ok("ppl", packed, arpa_text)
        assert ok("next", packed, "the")
        assert len(ok("score", packed, arpa_text).split("\n")) == 11
        assert "only the probabilities of an SNM" in fails("explain", packed, "the")
        assert "arpa" in ok("info", packed)
        assert "differs from 1 by at most" in ok("verify", packed, arpa_text)
        assert ok("generate", packed)
        ok("export", packed, tmp_path / "again.arpa")
        assert (tmp_path / "again.arpa").read_text().startswith("\\data\\")
        assert "weights" in ok("mix", packed, ARPA, "--dev", arpa_text, "--json")

    def test_a_mixture_contains_it(self, tmp_path: Path, arpa_text: Path) -> None:
        moved = tmp_path / "a.arpa"
        moved.write_bytes(ARPA.read_bytes())
        mixed = snm.mix([snm.load(moved), ARPA], arpa_text, tmp_path / "m")
        expected = mixed.score("the")
        moved.unlink()
        assert snm.load(tmp_path / "m").score("the") == expected

    def test_progress_is_in_bytes(self) -> None:
        """It was one report for each n-gram, and the command line showed a million of them as a megabyte."""
        shown: list[Any] = []

        @contextmanager
        def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
            yield shown.append

        snm.load(ARPA, progress=progress)
        assert sum(shown) == ARPA.stat().st_size
        assert len(shown) < 5

    def test_what_is_no_model(self, tmp_path: Path) -> None:
        file = tmp_path / "text.txt"
        file.write_text("the old stone\n")
        with pytest.raises(FormatError, match="neither a model nor an ARPA file"):
            snm.load(file)
        assert "neither a model nor an ARPA file" in fails("ppl", file, file)
        with pytest.raises(ModelNotFound):
            snm.load(tmp_path / "none.arpa")

    def test_a_binary_of_kenlm_is_recognised(self, tmp_path: Path) -> None:
        binary, model = tmp_path / "a.binary", GOLDEN / "format3" / "backoff"
        binary.write_bytes(KENLM)
        for call in (
            lambda: snm.load(binary),
            lambda: snm.train(binary, tmp_path / "m"),
            lambda: snm.import_arpa(binary, tmp_path / "m"),
            lambda: snm.mix([model, binary], binary, tmp_path / "m"),
            lambda: snm.verify(binary),
            lambda: golden("snm").perplexity(binary),
        ):
            with pytest.raises(SnmError, match=r"is a KenLM binary.* ARPA file"):
                call()
        for arguments in (
            ("ppl", binary, binary), ("ppl", model, binary), ("info", binary), ("next", binary), ("verify", binary),
            ("mix", model, binary, "--dev", ARPA), ("export", binary), ("train", binary, "-o", tmp_path / "m"),
        ):  # fmt: skip
            assert "is a KenLM binary" in fails(*arguments)

    def test_export_and_import(self, tmp_path: Path) -> None:
        model = golden("backoff")
        snm.export_arpa(model, tmp_path / "a.arpa")
        again = snm.import_arpa(tmp_path / "a.arpa", tmp_path / "m")
        assert again.score(SENTENCES[0]) == pytest.approx(model.score(SENTENCES[0]), abs=1e-5)
        for path in (tmp_path, tmp_path / "none" / "a.arpa"):
            with pytest.raises(SettingsError, match="cannot write"):
                snm.export_arpa(model, path)
        with pytest.raises(SettingsError, match="give the text whose n-grams"):
            snm.export_arpa(golden("hsme"), tmp_path / "b.arpa")
        assert not (tmp_path / "b.arpa").exists()


class TestStates:
    def test_the_old_name_of_the_interface(self) -> None:
        for kind in KINDS:
            assert isinstance(golden(kind), snm.StatefulModel)

    @pytest.mark.parametrize("kind", ["hsme", "lstm"])
    def test_a_mixture_with_a_neural_model_scores_word_by_word(self, kind: str, tmp_path: Path) -> None:
        members = [GOLDEN / "format3" / "snm", GOLDEN / "format3" / kind]
        mixed = snm.mix(members, iter(SENTENCES), tmp_path / "m")
        state, total = mixed.start(), 0.0
        for word in [*SENTENCES[0].split(), "</s>"]:
            score, state = mixed.step(state, word)
            total += score
        assert total == pytest.approx(mixed.score(SENTENCES[0]), abs=1e-5)

    def test_a_mixture_of_mixtures_with_words_in_another_order(self, tmp_path: Path) -> None:
        """States, scores and hypotheses are those of whole sentences, with words and with ids."""
        lines = SENTENCES * 10
        words = sorted({word for line in lines for word in line.split()})
        (tmp_path / "words").write_text("\n".join(words))
        common = {"min_count": 1, "threads": 1}
        first = snm.train(iter(lines), tmp_path / "a", snm.Settings(order=2, **common))  # type: ignore[arg-type]
        second = snm.train(
            iter(lines),
            tmp_path / "b",
            snm.Settings(model="kn", order=3, vocab=tmp_path / "words", **common),  # type: ignore[arg-type]
        )
        assert first.vocabulary != second.vocabulary
        inner = snm.mix([second, first], iter(lines), tmp_path / "m")
        model: Any = snm.mix([first, inner], iter(lines), tmp_path / "n")
        model.weights, model.members[1].weights = np.array([0.4, 0.6]), np.array([0.7, 0.3])
        for line in (*lines[:3], "old a stone"):
            by_word, by_id, beam = model.start(), model.start(), model.state_array([model.start()] * 2)
            totals = np.zeros(3)
            for word in [*line.split(), "</S>"]:
                number = model.vocabulary.id_of(word)
                one, by_word = model.step(by_word, word)
                other, by_id = model.step(by_id, number)
                scores = model.expand(beam, [word, "the"])
                assert scores[1, 0] == scores[0, 0]
                beam = model.follow(beam, [word, "the"], np.array([2, 0]))
                totals += one, other, scores[0, 0]
            assert by_word == by_id == beam[0].tobytes()
            assert totals == pytest.approx(np.full(3, model.score(line)), abs=1e-5)
        with pytest.raises(SettingsError, match="another vocabulary"):
            model.step(b"x" * len(model.start()), "the")


@pytest.mark.parametrize("kind", ["snm", "backoff", "hsme", "mixture"])
def test_eight_threads_get_the_results_of_one(kind: str) -> None:
    model = golden(kind)

    def everything(number: int) -> list[Any]:
        line = SENTENCES[number % 3]
        found: list[Any] = [
            model.score_sentences(SENTENCES), model.distribution(model.context(line)).tolist(),
            model.next_words(line, k=5), model.generate(line, seed=number % 3, max_words=5),
            model.perplexity(SENTENCES, threads=1 + number % 3).ppl,
        ]  # fmt: skip
        if isinstance(model, snm.SnmModel):
            found.append(model.explain(line))
        states = model.state_array([model.start()] * 3)
        score, state = model.step(model.start(), "the")
        scores = model.expand(states, line.split())
        found += [score, state, scores.tolist(), model.follow(states, line.split(), np.arange(3)).tolist()]
        found.append([part.tolist() for part in model.steps(states, ["the", "old", "a"])])
        return found

    expected = [everything(number) for number in range(3)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(everything, range(48)))
    assert made == [expected[number % 3] for number in range(48)]


class TestSentences:
    def test_tables_and_sets_have_no_order_of_sentences(self) -> None:
        model = golden("snm")
        for wrong in (Table(), {"the old"}, {"the old": 1}):
            with pytest.raises(InputError, match="give a list"):
                model.score_sentences(wrong)
        assert model.score_sentences(Column()) == model.score_sentences(["the old"])
        assert model.score([np.uint32(3), np.int64(4)]) == model.score(np.array([3, 4]))  # type: ignore[list-item]
        with pytest.raises(InputError):
            model.score([True, False])  # type: ignore[list-item]

    def test_a_beginning_is_a_string_words_or_ids(self) -> None:
        model = golden("snm")
        ids = model.vocabulary.ids_of(["the", "old"])
        for text in (["the", "old"], ids, tuple(ids.tolist())):
            assert model.next_words(text) == model.next_words("the old")
            assert model.explain(text) == model.explain("the old")
            assert model.generate(text, seed=1) == model.generate("the old", seed=1)

    def test_a_generator_is_read_once(self, tmp_path: Path) -> None:
        read = 0

        def lines() -> Iterator[str]:
            nonlocal read
            read += 1
            yield from SENTENCES * 20

        given = lines()
        model = snm.train(given, tmp_path / "m", GATED, dev=iter(SENTENCES))
        assert model.manifest["text"]["sentences"] == 60
        assert read == 1
        with pytest.raises(InputError, match="no words"):
            model.perplexity(given)


class TestVocabulary:
    @pytest.mark.parametrize("words", ["abc", ["a", "a"], ["<S>"], ["a\nb"], [""], [3], 3, ["\ud800"]])
    def test_what_are_no_words_is_refused(self, words: Any) -> None:
        with pytest.raises(InputError):
            snm.Vocabulary(words)

    def test_an_id_of_something_else(self) -> None:
        vocabulary = snm.Vocabulary(["a"])
        for call in (lambda: vocabulary.id_of(3), lambda: vocabulary.ids_of("aa")):  # type: ignore[arg-type]
            with pytest.raises(InputError):
                call()


class TestPublicNames:
    def test_every_name_can_be_imported(self) -> None:
        for name in snm.__all__:
            assert getattr(snm, name) is not None
        assert {"NetworkSettings", "StatefulModel", "Vocabulary", "export_arpa", "import_arpa", "verify"} <= set(
            dir(snm)
        )
        assert snm.errors.InputError is InputError
        assert all(issubclass(getattr(snm.errors, n), SnmError) for n in dir(snm.errors) if n[0].isupper())

    def test_type_checkers_see_the_same_names(self) -> None:
        tree = ast.parse(Path(snm.__file__).read_text())
        checked = next(node for node in tree.body if isinstance(node, ast.If))
        names = [alias.asname for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names]
        assert sorted([*map(str, names), "__version__"]) == sorted(snm.__all__)

    def test_import_costs_nothing(self) -> None:
        code = "import sys, snm; print(*[m for m in sys.modules if m.startswith(('numpy', 'numba', 'snm.'))])"
        found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert found.stdout.split() == ["snm.version"]

    @pytest.mark.parametrize(
        ("function", "positional"),
        [
            (snm.load, ["path"]), (snm.train, ["sources", "output", "settings"]),
            (snm.count_text, ["sources", "output", "settings"]), (snm.merge_counts, ["folders", "output"]),
            (snm.write_vocabulary, ["sources", "output"]),
            (snm.mix, ["models", "dev", "output"]), (snm.verify, ["path", "sources"]),
            (snm.import_arpa, ["path", "output"]), (snm.export_arpa, ["model", "path"]),
            (snm.paper_settings, ["features"]), (snm.Settings, []), (snm.TrainingSettings, []),
            (snm.NetworkSettings, []), (snm.Vocabulary, ["words"]), (snm.MetafeatureSet.parse, ["text"]),
            (snm.feature_family, ["name"]), (snm.LanguageModel.perplexity, ["self", "text"]),
            (snm.LanguageModel.probabilities, ["self", "tokens"]), (snm.LanguageModel.next_words, ["self", "text"]),
            (snm.LanguageModel.generate, ["self", "prompt"]),
        ],
    )  # fmt: skip
    def test_options_are_given_by_name(self, function: Callable[..., Any], positional: list[str]) -> None:
        parameters = inspect.signature(function).parameters.values()
        assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == positional

    def test_verify_reports_or_raises(self, tmp_path: Path) -> None:
        assert snm.verify(GOLDEN / "format3" / "backoff", iter(SENTENCES), contexts=5).worst < 1e-5
        model = golden("backoff")
        snm.export_arpa(model, tmp_path / "a.arpa")
        lines = (tmp_path / "a.arpa").read_text().split("\n")
        number = next(i for i, line in enumerate(lines) if line.split("\t")[1:2] == ["the"])
        lines[number] = "\t".join(["-0.001", *lines[number].split("\t")[1:]])
        (tmp_path / "a.arpa").write_text("\n".join(lines))
        with pytest.raises(FormatError, match="sum to 1 only within"):
            snm.verify(tmp_path / "a.arpa", iter(SENTENCES))

    def test_a_subclass_is_a_model(self) -> None:
        class Loud(snm.SnmModel):
            def score(self, sentence: Any, *, spelled: bool = False) -> float:
                return 10 * super().score(sentence, spelled=spelled)

        model = Loud(GOLDEN / "format3" / "snm")
        assert model.score("the old") == 10 * golden("snm").score("the old")
        with model:
            assert model.step(model.start(), "the")[0] < 0
        with pytest.raises(snm.errors.ClosedModel):
            model.score("the old")
