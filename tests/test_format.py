"""The slow reader of docs/format.md against what both engines write and what the kernels read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snm.adjustment.settings import TrainingSettings
from snm.devices import has_gpu
from snm.kernels.matrix import read_row
from snm.layouts.keys import ABSENT
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.reference.format import BackoffModel, SnmModel, StoredRow, read_model
from snm.reference.tokenizers import characters
from snm.scoring.model import RowModel
from snm.scoring.model import SnmModel as FastModel
from snm.settings import Settings
from snm.text.encoding import Text, encode_files
from snm.text.fields import MARK
from tests.conftest import SMALL_SKIPS, train, write_bigrams
from tests.test_golden import MODELS

BIGRAMS = Settings(threads=1, min_count=1, gate=8, folds=0)
CASES = {
    "skips": replace(BIGRAMS, features=SMALL_SKIPS, prune=1),
    "skips-16bit-ungated": replace(BIGRAMS, features=SMALL_SKIPS, prune=1, weight_bits=16, gate=0),
    "pruned": replace(BIGRAMS, features=f"ngram(0..6) + {SMALL_SKIPS}", prune=3),
    "classes-closed": replace(BIGRAMS, features="medium", classes=8, closed=True, min_count=20),
    "no-singles": replace(BIGRAMS, features="snm4", weight_bits=16, training=TrainingSettings(loss="poisson")),
    "cache": replace(BIGRAMS, features="snm3 + cache(a=0..2, words=30, half=10)"),
    "cache-closed": replace(BIGRAMS, features=f"{SMALL_SKIPS} + cache(words=9, half=3)", closed=True, min_count=20),
    "fields": replace(BIGRAMS, features="snm3 + side(topic, a=0..2)", fields="speaker,topic", prune=1),
    "wide": replace(BIGRAMS, features="snm3"),
    "wide-16bit-ungated": replace(BIGRAMS, features="snm3", weight_bits=16, gate=0),
}
ON_GPU = ("skips", "pruned", "classes-closed", "no-singles", "wide-16bit-ungated")  # the GPU engine, on the CPU device


@dataclass
class Case:
    """One model, read by the slow reader and by the package."""

    name: str
    slow: SnmModel
    fast: FastModel
    text: Text  # the training text
    test: Text

    @cached_property
    def rows(self) -> dict[int, StoredRow]:
        return self.slow.rows()


def write_wide(path: Path, words: int) -> Path:
    """A text with links to words above 0xFFFF, in rows of one link, a few, and more than fit into a page."""
    rare = [f"w{i:05}" for i in range(words)]  # each occurs once: equally frequent words have ids by their spelling
    lines = [" ".join(rare[i : i + 25]) for i in range(0, words - 1000, 25)]
    for n in range(1, 41):
        lines += [f"before{n} {word}" for word in ("common", *(rare.pop() for _ in range(n)))]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_bigrams(folder / "bigrams.txt", 1, 500, 60, 6)
    write_bigrams(folder / "bigrams-test.txt", 2, 20, 70, 6)
    for end in ("", "-test"):
        lines = (folder / f"bigrams{end}.txt").read_text().split("\n")
        fielded = [f"{('speaker=a', 'topic=x speaker=b', 'topic=y', '')[i % 4]} {line}" for i, line in enumerate(lines)]
        (folder / f"fields{end}.txt").write_text("\n".join(fielded))
    write_wide(folder / "wide.txt", 70_000)
    (folder / "wide-test.txt").write_text(
        "before2 w69998 w00001\nbefore40 w69200 before1 common\nw65000 w65001 w65002\n"
    )
    return folder


@pytest.fixture(scope="module", params=[f"{name}-cpu" for name in CASES] + [f"{name}-gpu" for name in ON_GPU])
def case(request: pytest.FixtureRequest, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, _, engine = request.param.rpartition("-")
    path, text = tmp_path_factory.mktemp("models") / request.param, name if name == "fields" else "bigrams"
    text = "wide" if "wide" in name else text
    with pytest.MonkeyPatch.context() as patch:
        if engine == "gpu":
            torch = pytest.importorskip("torch")
            if not has_gpu():
                patch.setitem(os.environ, "TRITON_INTERPRET", "1")
            patch.setattr("snm.devices.find_gpu", lambda: torch.device("cpu"))
        fast = train(texts / f"{text}.txt", path, replace(CASES[name], engine=engine))
    slow = read_model(path)
    assert isinstance(slow, SnmModel)
    assert isinstance(fast, FastModel)
    both = [encode_files(texts / f"{text}{end}.txt", fast.vocabulary) for end in ("", "-test")]
    return Case(name, slow, fast, *both)


def keys_of(model: RowModel, text: Text) -> list[tuple[int, int]]:
    """Template and key of every feature of a text, the empty feature left out."""
    keys = model.extractor.keys(text.tokens, 0, len(text.tokens))[1:]
    templates, _ = (keys != ABSENT).nonzero()
    return sorted(set(zip((templates + 1).tolist(), keys[keys != ABSENT].tolist(), strict=True)))


def contexts_of(tokens: list[int]) -> list[list[int]]:
    """The context of every token; empty for `<S>`."""
    found, begin = [], 0
    for k, token in enumerate(tokens):
        begin = k if token == BEGIN else begin
        found.append(tokens[begin:k])
    return found


def slow_probabilities(model: Any, tokens: list[int]) -> list[float]:
    return [model.probability(c, t) if c else 0.0 for c, t in zip(contexts_of(tokens), tokens, strict=True)]


def test_keys_are_the_kernels(case: Case) -> None:
    tokens = case.test.tokens.tolist()
    found = case.fast.extractor.keys(case.test.tokens, 0, len(tokens))
    for k, context in enumerate(contexts_of(tokens)):
        event = context and tokens[k] not in case.slow.never_targets
        expected = [key or 0 for key in case.slow.keys(context)] if event else [0] * len(found)
        assert found[:, k].tolist() == expected


def test_rows_are_those_that_the_kernels_read(case: Case) -> None:
    """Rows of features of the training text, of pruned ones, and of others that only the test text has."""
    keys = [*keys_of(case.fast, case.text), *keys_of(case.fast, case.test)]
    here = 0
    for template, key in keys[:: max(1, len(keys) // 5000)]:
        targets, weights = read_row(template, np.uint64(key), case.fast.matrix)
        row = case.slow.row(key)
        assert (row is None) == (len(targets) == 0)
        if row is not None:
            assert row.weights == dict(zip(targets.tolist(), weights.tolist(), strict=True))
            assert row.row_sum == pytest.approx(weights.sum(dtype=np.float64), rel=1e-6)
            here += 1
    assert here > 500


def test_the_rows_of_all_pages_are_those_of_the_training_text(case: Case) -> None:
    rows, manifest, shift = case.rows, case.fast.manifest, 40 - case.slow.page_bits
    assert len(rows) == manifest["rows"] - 1 - manifest["pages"]["shadowed"]
    links = sum(len(row.codes) for row in rows.values()) + len(case.slow.unigrams.weights)
    assert links == manifest["links"] or manifest["pages"]["shadowed"]
    found = {key >> shift for _, key in keys_of(case.fast, case.text)}
    assert set(rows) <= found
    assert ("pruned" in case.name or "closed" in case.name) == (len(rows) < len(found))


def test_the_cases_have_rows_of_all_kinds(case: Case) -> None:
    rows = list(case.rows.values())
    seen_once = [row for row in rows if None in row.codes.values()]
    assert bool(seen_once) == (case.name != "no-singles")
    assert {row.count_code for row in seen_once} <= {0}
    assert {len(row.codes) > 32 for row in rows} == {True, False}
    assert any(8 < len(row.codes) <= 32 for row in rows)
    if "wide" in case.name:
        wide = [row for row in rows if max(row.codes) >= 0x10000]
        assert {len(row.codes) for row in wide} >= {1, 2, 8, 9, 32, 33, 41}
        inline = {target < 0x8000 for row in seen_once for target in row.codes}
        assert inline == {True, False}
        assert len(np.load(case.slow.path / "long_links.npy")) > 100


def test_probabilities_are_the_kernels(case: Case) -> None:
    for tokens in (case.test.tokens, case.text.tokens[:300]):
        expected = case.fast.probabilities(tokens)
        assert slow_probabilities(case.slow, tokens.tolist()) == pytest.approx(expected, rel=1e-6, abs=0)


def test_distributions_are_the_kernels_and_sum_to_one(case: Case) -> None:
    context = case.test.tokens[:5]
    expected, every = case.fast.distribution(context), 1 + len(case.slow.words) // 500  # words of 70,000: a sample
    found = [case.slow.probability(context.tolist(), word) for word in range(0, len(expected), every)]
    assert found == pytest.approx(expected[::every], rel=1e-6, abs=0)
    assert expected.sum() == pytest.approx(1, rel=1e-6)
    assert [expected[BEGIN] == 0, expected[UNKNOWN] == 0] == [True, case.fast.vocabulary.closed]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_golden_models_have_the_stored_probabilities(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())
    model = read_model(path)
    ids = {word.removeprefix(MARK): i for i, word in enumerate(model.words)}
    divide = characters if "tokenizer" in model.manifest else str.split

    def tokens_of(line: str) -> list[int]:
        return [BEGIN, *(ids.get(word, UNKNOWN) for word in divide(line))]

    tokens = [token for line in expected["scored"] for token in (*tokens_of(line), END)]
    assert slow_probabilities(model, tokens) == pytest.approx(expected["probabilities"], rel=2e-6, abs=0)
    found = model.distribution(tokens_of(expected["context"]))
    assert found == pytest.approx(expected["distribution"], rel=2e-6, abs=0)


@pytest.mark.parametrize("model", ["kn", "katz", "sbo"])
def test_backoff_models_are_the_kernels(model: str, texts: Path, tmp_path: Path) -> None:
    fast = train(texts / "bigrams.txt", tmp_path / "model", replace(BIGRAMS, model=model, order=4))
    slow = read_model(tmp_path / "model")
    assert isinstance(slow, BackoffModel)
    assert len(slow.rows()) == fast.manifest["rows"]
    assert all(slow.row(key) == row for key, row in slow.rows().items())
    assert slow.row(2**64 - 1) is None
    tokens = encode_files(texts / "bigrams-test.txt", fast.vocabulary).tokens
    expected = fast.probabilities(tokens)
    assert slow_probabilities(slow, tokens.tolist()) == pytest.approx(expected, rel=1e-6, abs=0)


def change(path: Path, name: str, index: int, value: int) -> None:
    """Change a number of an array, and its checksum with it."""
    array = np.load(path / f"{name}.npy")
    array[index] = value
    np.save(path / f"{name}.npy", array)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][f"{name}.npy"]["sha256"] = hashlib.sha256((path / f"{name}.npy").read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "data.npy").write_bytes(b"short"), "size or checksum differ"),
        (lambda path: (path / "manifest.json").write_text('{"format": "snm-model", "version": 2}'), "expected .* 3"),
        (lambda path: change(path, "data", -1, 1), "do not fit together"),
        (lambda path: change(path, "long_links", 0, 0xFFFFFFFF), "not in its position"),
        (lambda path: change(path, "data", 0, 255), "left of a page"),
    ],
    ids=["checksum", "version", "padding", "long-row", "page"],
)  # fmt: skip
def test_damage_is_reported(damage: Any, message: str, tmp_path: Path) -> None:
    path = next(model for model in MODELS if model.name == "snm-long-rows")
    shutil.copytree(path, tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        read_model(tmp_path / "model").rows()  # type: ignore[attr-defined]
