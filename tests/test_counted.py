"""Counts that add: shards are counted, merged and trained to the same bytes as the whole text."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import snm
from snm import manifest, pipeline
from snm.counted import CountedText
from snm.counts.merging import add, merged, write_merged
from snm.counts.store import CODES, CountsWriter, StoredCounts, encode
from snm.errors import FormatError, InputError, ModelNotFound, SettingsError
from snm.features import families
from snm.features.extraction import Extractor
from snm.kernels import count_merging as kernels
from snm.layouts.counts import Counts
from snm.layouts.keys import KeyLayout
from snm.reference import counts as reference
from snm.settings import Settings
from snm.storage import MANIFEST, ArrayWriter, sealed
from tests.conftest import SMALL_SKIPS, random_text, vocabulary_of, write_bigrams
from tests.test_cli import fails, ok, run
from tests.test_count_store import CASES, counts_of, key_of, rows_of_keys, same

CLASSES = "ngram(0..2) + class(r=1..2, s=0, a=0, words=1..2)"

# ---------------------------------------------------------------------------------------------
# the kernel, and ranges of buckets


def sorted_rows(rows: dict[int, dict[int, int]]) -> reference.Rows:
    return [(key_of(key), sorted(row.items())) for key, row in sorted(rows.items())]


def check_added(*parts: reference.Rows) -> None:
    expected = counts_of(reference.merge(*parts))
    assert same(add([counts_of(part) for part in parts]), expected)
    if len(parts) == 2:
        a, b = map(counts_of, parts)
        assert kernels.merged_sizes(a, b) == (len(expected.features), len(expected.targets))


@pytest.mark.parametrize("one", CASES)
@pytest.mark.parametrize("other", [name for name in CASES if name != "large counts"])  # twice, they exceed 64 bits
def test_fixed_rows_are_added_as_the_reference_does(one: str, other: str) -> None:
    check_added(CASES[one], CASES[other])
    check_added(CASES[other], CASES[one])


@given(parts=st.lists(rows_of_keys, min_size=1, max_size=5))
def test_any_rows_are_added_as_the_reference_does(parts: list[dict[int, dict[int, int]]]) -> None:
    check_added(*map(sorted_rows, parts))


def test_the_reference_adds_counts() -> None:
    a, b = [(1, [(3, 1), (5, 2)]), (9, [(1, 1)])], [(1, [(4, 7), (5, 1)]), (5, [(1, 1)])]
    assert reference.merge(a, b) == [(1, [(3, 1), (4, 7), (5, 3)]), (5, [(1, 1)]), (9, [(1, 1)])]
    assert reference.merge([], a, []) == a


def stored(rows: reference.Rows, folder: Path, bucket_bits: int) -> StoredCounts:
    layout = KeyLayout(3, 3, bucket_bits)
    writer = CountsWriter(folder, layout)
    writer.append(encode(counts_of(rows), 0, 1 << bucket_bits, layout))
    return writer.finish(np.zeros(8, np.int64))


@given(
    parts=st.lists(st.tuples(rows_of_keys, st.integers(1, 6)), min_size=1, max_size=4),
    bucket_bits=st.integers(1, 6), threads=st.integers(1, 2), memory=st.sampled_from([1, 5000, 1 << 30]),
)  # fmt: skip
def test_stores_with_any_numbers_of_buckets_are_merged(
    parts: list[tuple[dict[int, dict[int, int]], int]], bucket_bits: int, threads: int, memory: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """The bytes are those of all rows encoded at once, for any amount of memory and any number of threads."""
    folder, layout = tmp_path_factory.mktemp("stores"), KeyLayout(3, 3, bucket_bits)
    stores = [stored(sorted_rows(rows), folder / str(i), bits) for i, (rows, bits) in enumerate(parts)]
    links: list[int] = []
    made = write_merged(folder / "merged", stores, np.zeros(8, np.int64), layout, memory, threads, advance=links.append)
    whole = reference.merge(*(sorted_rows(rows) for rows, _ in parts))
    expected = stored(whole, folder / "whole", bucket_bits)
    assert sum(links) >= sum(store.links for store in stores)
    for file in expected.folder.iterdir():
        assert (made.folder / file.name).read_bytes() == file.read_bytes()


def test_rare_features_of_some_types_are_left_out(tmp_path: Path) -> None:
    """A feature that is rare in every part may be frequent enough in the whole."""
    one, other = [(key_of(0), [(1, 1)]), (key_of(1), [(1, 1)])], [(key_of(0), [(2, 1)]), (key_of(9), [(2, 1)])]
    stores = [stored(rows, tmp_path / str(i), 1) for i, rows in enumerate((one, other))]
    layout = KeyLayout(3, 3, 1)
    least = np.ones(8, np.int64)
    least[0] = 2  # of keys whose type is 0
    parts = list(merged(stores, layout, 1 << 30, min_counts=least))
    assert sum(part.rows for part in parts) == 3
    least[1] = 2
    assert sum(part.rows for part in merged(stores, layout, 1 << 30, min_counts=least)) == 1


@pytest.mark.parametrize("features", [CLASSES, SMALL_SKIPS, f"{SMALL_SKIPS} + class(r=1..2, s=0..1, a=1, words=2..3)"])
def test_the_parts_of_an_extractor_have_all_its_keys(features: str) -> None:
    text, spec = random_text(3), snm.FeatureSpec(features)
    classes = np.arange(14, dtype=np.uint16) % 4
    whole = Extractor(spec, KeyLayout.for_work(14, len(spec.types), 9999), vocabulary_of(14), classes)
    n, parts = len(text.tokens), [whole.part(by_class) for by_class in (False, True)]
    assert sum(part.n_templates for part in parts) == whole.n_templates + 1  # the empty feature is in both
    words, by_class = (part.keys(text.tokens, 0, n) for part in parts)
    expected = whole.keys(text.tokens, 0, n)
    assert np.array_equal(np.sort(np.concatenate([words, by_class[1:]]), axis=0), np.sort(expected, axis=0))
    assert parts[0].classes is None


# ---------------------------------------------------------------------------------------------
# the same bytes


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text of documents in three shards, all of it, held-out text and a vocabulary."""
    folder = tmp_path_factory.mktemp("shards")
    lines = write_bigrams(folder / "all", 5, 5000, 150, 6).read_text().split("\n")
    lines = [line if i % 10 else f"{line}\n" for i, line in enumerate(lines, 1)]
    for name, part in (("a", lines[:4500]), ("b", lines[4500:4501]), ("c", lines[4501:])):
        (folder / name).write_text("\n".join(part) + "\n")
    write_bigrams(folder / "dev", 6, 300, 150, 6)
    snm.write_vocabulary([folder / "a", folder / "b"], folder / "vocab", min_count=2, threads=1)
    return folder


def settings(corpus: Path | None, features: str | None = CLASSES, **more: Any) -> Settings:
    return Settings(vocab=corpus and corpus / "vocab", features=features, threads=1, **{"folds": 0, **more})


def count_shards(corpus: Path, folder: Path, shards: list[list[str]], **more: Any) -> list[CountedText]:
    """The counts of each shard, a list of files."""
    return [
        snm.count_text([corpus / name for name in names], folder / "-".join(names), settings(corpus, **more))
        for names in shards
    ]


def same_files(a: Path, b: Path) -> None:
    names = sorted(path.relative_to(a) for path in a.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(b) for path in b.rglob("*") if path.is_file())
    for name in names:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.mark.parametrize(
    "shards", [[["a"], ["b"], ["c"]], [["a", "b"], ["c"]], [["a"], ["b", "c"]], [["a", "b", "c"]]], ids=str
)
@pytest.mark.parametrize("document", [False, True])
def test_merged_counts_are_those_of_the_whole_text(
    shards: list[list[str]], document: bool, corpus: Path, tmp_path: Path
) -> None:
    parts = count_shards(corpus, tmp_path, shards, document=document)
    made = snm.merge_counts(parts, tmp_path / "merged", threads=2)
    whole = snm.count_text(
        [corpus / name for name in "abc"], tmp_path / "whole", settings(corpus, document=document, partitions=3)
    )
    same_files(made.path, whole.path)
    assert (made.manifest["text"]["documents"] is None) != document
    assert made.manifest["text"]["sentences"] == 5000


def test_merging_in_two_steps_is_merging_at_once(corpus: Path, tmp_path: Path) -> None:
    a, b, c = count_shards(corpus, tmp_path, [["a"], ["b"], ["c"]])
    ab = snm.merge_counts([a, b], tmp_path / "ab", threads=1)
    two_steps = snm.merge_counts([ab, c.path], tmp_path / "two", threads=1)
    same_files(two_steps.path, snm.merge_counts([a, b, c], tmp_path / "one", threads=1).path)


TRAININGS: dict[str, dict[str, Any]] = {
    "with classes": {},
    "without classes": {"features": SMALL_SKIPS},
    "pruned": {"features": "ngram(0..5) + skip(r=1, s=1..2, a=1)", "prune": 2},
    "pruned, with classes": {"prune": 2},
    "documents": {"document": True},
    "closed": {"closed": True},
    "no gate": {"gate": 0},
    "multinomial": {"features": SMALL_SKIPS, "training": snm.TrainingSettings(loss="multinomial", passes=2)},
    "not trained": {"training": snm.TrainingSettings(passes=0)},
    "folds": {"folds": 3},
    "some events": {"training": snm.TrainingSettings(events=5000)},
    "partitions": {"partitions": 3},
    "kn": {"model": "kn", "features": None},
    "katz": {"model": "katz", "features": None, "order": 3},
    "sbo, closed": {"model": "sbo", "features": None, "closed": True},
}


@pytest.mark.parametrize("dev", [False, True])
@pytest.mark.parametrize("name", TRAININGS)
def test_a_model_of_counts_is_that_of_the_text(name: str, dev: bool, corpus: Path, tmp_path: Path) -> None:
    how = TRAININGS[name]
    if dev and (how.get("model", "snm") != "snm" or "folds" in how):
        pytest.skip("these models use no held-out text")
    counting = {key: how[key] for key in ("features", "document", "closed") if how.get(key) is not None}
    parts = count_shards(corpus, tmp_path, [["a"], ["b"], ["c"]], **counting)
    counts = snm.merge_counts(parts, tmp_path / "merged", threads=1)
    held_out = corpus / "dev" if dev else None
    given = {key: value for key, value in how.items() if key not in counting}
    snm.train(None, tmp_path / "model", settings(None, **{"features": None, **given}), counts=counts, dev=held_out)
    text = [corpus / part for part in "abc"]
    snm.train(text, tmp_path / "expected", settings(corpus, **how), dev=held_out)
    same_files(tmp_path / "model", tmp_path / "expected")


def test_stored_counts_replace_the_second_counting(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With word classes, only the features that use them are counted a second time."""
    counts = snm.count_text(corpus / "a", tmp_path / "c", settings(corpus))
    names: list[str] = []
    count = pipeline._count

    def noted(*arguments: Any) -> StoredCounts:
        names.append(arguments[-1])
        return count(*arguments)

    monkeypatch.setattr(pipeline, "_count", noted)
    snm.train(None, tmp_path / "m", settings(None, None), counts=counts)
    assert names == ["counts", "class-counts"]


def test_new_text_joins_the_counts_of_an_old_model(corpus: Path, tmp_path: Path) -> None:
    """The sum takes the place of one of its parts."""
    old, new = count_shards(corpus, tmp_path, [["a"], ["c"]])
    tokens = old.manifest["text"]["tokens"]
    joined = snm.merge_counts([old, new], old.path, threads=1, force=True)
    assert joined.manifest["text"]["tokens"] == tokens + new.manifest["text"]["tokens"]
    whole = snm.count_text([corpus / "a", corpus / "c"], tmp_path / "whole", settings(corpus))
    same_files(joined.path, whole.path)


def test_features_of_families(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_families", dict(families._families))

    def register(factor: int) -> None:
        @snm.feature_family("before_last", columns=2, span=2)
        def make(vocabulary: snm.Vocabulary) -> Any:
            def keys(tokens: np.ndarray, position: np.ndarray) -> np.ndarray:
                values = np.zeros((2, len(tokens)), np.uint64)
                values[0, 2:] = tokens[:-2] * np.uint64(factor)
                values[1, 1:] = tokens[:-1] % 7
                return np.where(position > 1, values, np.uint64(0))

            return keys

    register(3)
    features = f"{CLASSES} + family(before_last)"
    parts = count_shards(corpus, tmp_path, [["a"], ["c"]], features=features)
    counts = snm.merge_counts(parts, tmp_path / "merged", threads=1)
    snm.train(None, tmp_path / "m", settings(None, None), counts=counts)
    snm.train([corpus / "a", corpus / "c"], tmp_path / "expected", settings(corpus, features))
    same_files(tmp_path / "m", tmp_path / "expected")
    register(5)
    with pytest.raises(SettingsError, match="other definitions of its feature families"):
        snm.train(None, tmp_path / "n", settings(None, None), counts=counts)
    other = snm.count_text(corpus / "b", tmp_path / "other", settings(corpus, features))
    with pytest.raises(SettingsError, match="families of the same names"):
        snm.merge_counts([counts, other], tmp_path / "n")
    families._families.clear()
    with pytest.raises(FormatError, match="--import"):
        CountedText(counts.path)


def test_the_engines_count_the_same(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors of the GPU engine, on the CPU."""
    torch = pytest.importorskip("torch")
    from snm import engines
    from snm.engines.gpu import GpuEngine

    (tmp_path / "text").write_text("\n".join((corpus / "a").read_text().split("\n")[:300]))
    expected = snm.count_text(tmp_path / "text", tmp_path / "cpu", settings(corpus))
    device = torch.device("cpu")
    monkeypatch.setattr(engines, "make", lambda s, _, progress, notify: GpuEngine(s, device, progress, notify))
    made = snm.count_text(tmp_path / "text", tmp_path / "gpu", settings(corpus))
    same_files(made.path, expected.path)
    # no events: the stored counts are used
    how: dict[str, Any] = {"gate": 0, "training": snm.TrainingSettings(passes=0)}
    snm.train(None, tmp_path / "m", settings(None, None, **how), counts=made)
    snm.train(tmp_path / "text", tmp_path / "n", settings(corpus, **how))
    same_files(tmp_path / "m", tmp_path / "n")


# ---------------------------------------------------------------------------------------------
# vocabularies


@pytest.mark.parametrize("limits", [{}, {"min_count": 1}, {"max_words": 20}, {"min_count": 4, "max_words": 100}])
def test_a_vocabulary_is_that_of_a_model(limits: dict[str, int], corpus: Path, tmp_path: Path) -> None:
    text = [corpus / name for name in "abc"]
    snm.write_vocabulary(text, tmp_path / "words", **limits)  # type: ignore[arg-type]
    model = snm.train(text, tmp_path / "m", Settings(features="ngram(0..1)", gate=0, threads=1, **limits))  # type: ignore[arg-type]
    assert (tmp_path / "words").read_text().split("\n")[:-1] == list(model.vocabulary.words[3:])


# ---------------------------------------------------------------------------------------------
# mistakes


@pytest.fixture(scope="module")
def counts(corpus: Path) -> CountedText:
    return snm.count_text(corpus / "a", corpus / "a.counts", settings(corpus))


@pytest.fixture
def damaged(counts: CountedText, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(counts.path, tmp_path / "damaged")


def test_the_tour_of_the_readme(corpus: Path, tmp_path: Path) -> None:
    text, vocab = [corpus / name for name in "abc"], tmp_path / "vocab"
    assert "wrote" in run("vocab", *text, "-o", vocab).stderr
    assert ok("vocab", *text) == vocab.read_text()
    for path in text:
        made = json.loads(ok("count", path, "--vocab", vocab, "-o", tmp_path / path.name, "--json", "--threads", "1"))
        assert made["links"] >= made["rows"] > 0
    counts = tmp_path / "counts"
    assert "wrote" in run("merge", *(tmp_path / path.name for path in text), "-o", counts).stderr
    assert run("merge", counts, "-o", tmp_path / "quiet", "--quiet").output == ""
    ok("train", "--counts", counts, "-o", tmp_path / "m", "--threads", "1")
    ok("train", *text, "--vocab", vocab, "-o", tmp_path / "n", "--threads", "1")
    same_files(tmp_path / "m", tmp_path / "n")
    ok("train", "--counts", counts, "-o", tmp_path / "kn", "--model", "kn", "--order", "3")
    assert "5,000 sentences" in ok("info", tmp_path / "kn")


def test_mistakes_of_snm_vocab(corpus: Path, tmp_path: Path) -> None:
    assert "no such file" in fails("vocab", tmp_path / "none", "-o", tmp_path / "v")
    assert "no words" in fails("vocab", "-", "-o", tmp_path / "v", text="\n\n")
    assert "Missing argument" in fails("vocab", "-o", tmp_path / "v")
    assert "--min-count" in fails("vocab", corpus / "a", "--min-count", "0")
    assert not (tmp_path / "v").exists()


def test_mistakes_of_snm_count(corpus: Path, counts: CountedText, model_path: Path, tmp_path: Path) -> None:
    out, vocab = tmp_path / "c", corpus / "vocab"
    assert "--vocab" in fails("count", corpus / "a", "-o", out)
    assert "--output" in fails("count", corpus / "a", "--vocab", vocab)
    assert "no such file" in fails("count", tmp_path / "none", "--vocab", vocab, "-o", out)
    assert "none" in fails("count", corpus / "a", "--vocab", tmp_path / "none", "-o", out)
    assert "no preset" in fails("count", corpus / "a", "--vocab", vocab, "-o", out, "--preset", "huge")
    assert "exclude" in fails(
        "count", corpus / "a", "--vocab", vocab, "-o", out, "--preset", "small", "--features", "ngram(0..1)"
    )
    assert "no words" in fails("count", "-", "--vocab", vocab, "-o", out, text="\n")
    assert "--memory" in fails("count", corpus / "a", "--vocab", vocab, "-o", out, "--memory", "lots")
    assert "exists already" in fails("count", corpus / "a", "--vocab", vocab, "-o", counts.path)
    assert "is not a folder of counts" in fails("count", corpus / "a", "--vocab", vocab, "-o", model_path, "--force")
    assert "is not a folder of counts" in fails("count", corpus / "a", "--vocab", vocab, "-o", corpus, "--force")
    assert "standard output" in fails("count", corpus / "a", "--vocab", vocab, "-o", "-")
    assert list(tmp_path.iterdir()) == []


def test_mistakes_of_snm_merge(corpus: Path, counts: CountedText, model_path: Path, tmp_path: Path) -> None:
    def refused(**more: Any) -> str:
        other = snm.count_text(
            iter(["w1 w2 w3"]), tmp_path / "other", replace(settings(corpus), **more), force=True
        ).path
        return fails("merge", counts.path, other, "-o", tmp_path / "m")

    assert "has the features 'ngram(0..1)'" in refused(features="ngram(0..1)")
    assert "with or without --closed" in refused(closed=True)
    assert "with or without --document" in refused(document=True)
    (tmp_path / "words").write_text("w2\nw1\nw3\n")
    assert "another vocabulary (6 words)" in refused(vocab=tmp_path / "words")
    words = (corpus / "vocab").read_text().split("\n")
    (tmp_path / "words").write_text("\n".join([words[1], words[0], *words[2:]]))
    assert "in the same order" in refused(vocab=tmp_path / "words")
    assert "Missing argument" in fails("merge", "-o", tmp_path / "m")
    assert "no such folder of counts" in fails("merge", counts.path, tmp_path / "none", "-o", tmp_path / "m")
    assert "is a model; expected a folder of counts" in fails("merge", counts.path, model_path, "-o", tmp_path / "m")
    assert "is not a folder of counts" in fails("merge", counts.path, corpus, "-o", tmp_path / "m")
    assert "is not a folder of counts" in fails("merge", counts.path, corpus / "a", "-o", tmp_path / "m")
    assert "exists already" in fails("merge", counts.path, "-o", counts.path)
    assert "is not a folder of counts" in fails("merge", counts.path, "-o", model_path, "--force")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "words"]


def test_mistakes_of_snm_train(corpus: Path, counts: CountedText, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    assert "expected TEXT, or --counts" in fails("train", "-o", out)
    assert "expected TEXT, or --counts" in fails("train", corpus / "a", "--counts", counts.path, "-o", out)
    assert "no such folder of counts" in fails("train", "--counts", tmp_path / "none", "-o", out)
    assert "is a model; expected" in fails("train", "--counts", model_path, "-o", out)
    for option, value in (("--vocab", corpus / "vocab"), ("--min-count", 2), ("--max-words", 9)):
        assert f"{option} would have no effect" in fails("train", "--counts", counts.path, "-o", out, option, value)
    for more in (("--preset", "snm5"), ("--order", "3"), ("--features", "ngram(0..1)")):
        assert "has counts of the features" in fails("train", "--counts", counts.path, "-o", out, *more)
    for name in ("closed", "document"):
        assert f"counted without --{name}" in fails("train", "--counts", counts.path, "-o", out, f"--{name}")
    assert "word classes" in fails("train", "--counts", counts.path, "-o", out, "--paper")
    assert "is not a model" in fails("train", "--counts", counts.path, "-o", counts.path, "--force")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["ppl", "score", "next", "info", "verify", "export", "generate", "explain"])
def test_counts_are_no_model(command: str, corpus: Path, counts: CountedText, tmp_path: Path) -> None:
    more = {"ppl": (corpus / "a",), "export": (tmp_path / "x.arpa",), "explain": ("w1",)}.get(command, ())
    assert "is a folder of counts; expected a model" in fails(command, counts.path, *more)


def test_python_mistakes(corpus: Path, counts: CountedText, tmp_path: Path) -> None:
    out = tmp_path / "m"
    with pytest.raises(SettingsError, match="exclude each other"):
        snm.train(corpus / "a", out, counts=counts)
    with pytest.raises(SettingsError, match="no text given"):
        snm.train(None, out)
    with pytest.raises(SettingsError, match="give vocab"):
        snm.count_text(corpus / "a", out, Settings())
    with pytest.raises(SettingsError, match="model is 'kn'"):
        snm.count_text(corpus / "a", out, settings(corpus, None, model="kn"))
    with pytest.raises(SettingsError, match="leave out vocab"):
        snm.train(None, out, settings(corpus), counts=counts)
    wrong: list[Any] = [[], "counts", counts, counts.path, 3, None]
    for folders in wrong:
        with pytest.raises(SettingsError, match="expected a list of folders"):
            snm.merge_counts(folders, out)
    with pytest.raises(InputError, match="no words"):
        snm.count_text(iter([]), out, settings(corpus))
    with pytest.raises(ModelNotFound):
        snm.train(None, out, counts=tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
    assert repr(counts) == f"CountedText({str(counts.path)!r})"


# ---------------------------------------------------------------------------------------------
# damage


def check_refused(path: Path, match: str) -> None:
    """Neither `merge` nor `train` takes the folder, and nothing is left behind."""
    before = sorted(path.parent.iterdir())
    for command in (("merge", path), ("train", "--counts", path)):
        assert match in fails(*command, "-o", path.parent / "out")
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize("file", ["tokens.npy", "vocabulary.txt", "counts/codes.npy", "counts/words.npy"])
def test_a_changed_byte(file: str, damaged: Path) -> None:
    content = bytearray((damaged / file).read_bytes())
    content[-2] ^= 1
    (damaged / file).write_bytes(content)
    check_refused(damaged, "checksum differs from the manifest's; restore it, or count again")


@pytest.mark.parametrize("file", ["tokens.npy", "vocabulary.txt", "counts/codes.npy", "counts/counts.json"])
def test_a_missing_or_cut_file(file: str, damaged: Path) -> None:
    path = damaged / file
    path.write_bytes(path.read_bytes()[:-1])
    check_refused(damaged, f"expected {path.stat().st_size + 1} bytes; restore it, or count again")
    path.unlink()
    check_refused(damaged, "is missing")


@pytest.mark.parametrize(
    ("entry", "value", "said"),
    [
        ("features", "ngram(0..1)", "contradict each other"),
        ("features", "nonsense(", "nonsense"),
        ("rows", 3, "contradict each other"),
        ("rows", "many", "rows is 'many'"),
        ("text", {}, "is missing"),
        ("vocabulary", {"words": 9, "closed": False, "document": False}, "contradict each other"),
        ("vocabulary", {"words": 9.5, "closed": False, "document": False}, "vocabulary.words is 9.5"),
        ("version", 2, "version 2; this program reads snm-counted-text version 1"),
        ("format", "other", "has format 'other'"),
        ("files", {"/etc/passwd": {"bytes": 1, "sha256": ""}}, "expected files of its folder"),
    ],
)
def test_a_changed_manifest(entry: str, value: Any, said: str, damaged: Path) -> None:
    entries = json.loads((damaged / MANIFEST).read_text())
    (damaged / MANIFEST).write_bytes(sealed({**entries, entry: value}))
    check_refused(damaged, said)


def test_a_text_that_contradicts_its_figures(damaged: Path) -> None:
    entries = json.loads((damaged / MANIFEST).read_text())
    entries["text"]["sentences"] += 1
    (damaged / MANIFEST).write_bytes(sealed(entries))
    check_refused(damaged, "contradict each other")


def test_a_checksum_of_each_bucket(damaged: Path) -> None:
    """If the manifest is not consulted, as where a file is damaged while it is read."""
    codes = damaged / "counts" / CODES
    content = bytearray(codes.read_bytes())
    content[-2] ^= 1
    codes.write_bytes(content)
    layout = StoredCounts(damaged / "counts").layout
    with pytest.raises(FormatError, match="another checksum"):
        list(merged([StoredCounts(damaged / "counts")], layout, 1 << 30))


# ---------------------------------------------------------------------------------------------
# interruptions


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_what_is_interrupted_leaves_nothing_behind(
    error: BaseException, corpus: Path, counts: CountedText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(self: ArrayWriter, *_: Any) -> None:
        raise error

    old = shutil.copytree(counts.path, tmp_path / "old")
    monkeypatch.setattr(ArrayWriter, "append", append)
    with pytest.raises((KeyboardInterrupt, OSError, snm.SnmError)):
        snm.merge_counts([old, counts], old, threads=1, force=True)
    with pytest.raises((KeyboardInterrupt, OSError, snm.SnmError)):
        snm.count_text(corpus / "a", tmp_path / "new", settings(corpus))
    assert list(tmp_path.iterdir()) == [old]
    same_files(old, counts.path)


def test_too_little_disk_is_said_early(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(
        SettingsError,
        match=r"counting needs about .* of disk at its peak, 0 MB are free: free some.*, or choose fewer features$",
    ):
        snm.count_text(corpus / "a", tmp_path / "new", settings(corpus, partitions=1))
    assert list(tmp_path.iterdir()) == []


def test_many_folders_hold_one_vocabulary(counts: CountedText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    reading = manifest.read_vocabulary

    def noted(path: Path, described: dict[str, Any]) -> snm.Vocabulary:
        read.append(path)
        return reading(path, described)

    monkeypatch.setattr(manifest, "read_vocabulary", noted)
    made = snm.merge_counts([counts.path] * 20, tmp_path / "m", threads=1)
    assert read == [counts.path]
    assert np.array_equal(made.store.words, 20 * counts.store.words)
    assert isinstance(made.store.decode(0, 1), Counts)
