"""Tests of filters in pipelines of the real packages: datatrove and datasets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import snm
from snm.errors import MissingExtra, SettingsError
from snm.settings import Settings
from tests.conftest import train

TEXTS = ["the cat sees the fish", "xqzj wvvk qqq", "", "a dog likes\nthe cake", "the old man eats the cake"] * 3

# what these packages themselves warn of is not our concern
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, corpus_file: Path) -> snm.LanguageModel:
    settings = Settings(features="ngram(0..2)", gate=0, threads=1, min_count=1)
    return train([corpus_file], tmp_path_factory.mktemp("datatrove") / "model", settings)


def test_a_pipeline_of_datatrove(model: snm.LanguageModel) -> None:
    pytest.importorskip("datatrove")
    from datatrove.data import Document

    from snm.integrations.datatrove import PerplexityFilter

    expected = snm.TextPerplexity(model)(TEXTS).tolist()
    documents = [Document(text=text, id=str(i)) for i, text in enumerate(TEXTS)]
    found = list(PerplexityFilter(model.path, max_ppl=100, batch_size=4).run(iter(documents)))
    assert [doc.id for doc in found] == [str(i) for i, ppl in enumerate(expected) if ppl <= 100]
    assert len(found) == 9
    assert found[0].metadata["perplexity"] == pytest.approx(expected[0])
    single = PerplexityFilter(model, min_ppl=100)
    assert single.filter(documents[1]) is True
    assert single.filter(documents[0]) == (False, "low_perplexity")
    assert single.filter(documents[2]) == (False, "no_words")
    ratio = PerplexityFilter(model, against=model, max_ratio=0.99)
    assert ratio.filter(documents[0]) == (False, "high_perplexity_ratio")
    assert documents[0].metadata["perplexity_ratio"] == pytest.approx(1)
    for wrong in ({}, {"max_ratio": 1}, {"max_ppl": 1, "against": model}, {"max_ppl": 1, "max_ratio": 1}):
        with pytest.raises(SettingsError, match="give max_ppl or min_ppl, or else"):
            PerplexityFilter(model, **wrong)


def test_files_through_an_executor_of_datatrove(model: snm.LanguageModel, tmp_path: Path) -> None:
    pytest.importorskip("datatrove")
    pytest.importorskip("orjson")  # for datatrove's files of JSON
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    from snm.integrations.datatrove import PerplexityFilter

    (tmp_path / "in").mkdir()
    for part in range(2):
        lines = "".join(f'{{"text": "{line}", "id": "{part}-{i}"}}\n' for i, line in enumerate(["the cat", "qxw zzz"]))
        (tmp_path / "in" / f"{part}.jsonl").write_text(lines)
    writer = JsonlWriter(str(tmp_path / "out"), compression=None)
    steps = [JsonlReader(str(tmp_path / "in")), PerplexityFilter(model.path, max_ppl=100), writer]
    LocalPipelineExecutor(steps, tasks=2, workers=1, logging_dir=str(tmp_path / "logs")).run()
    written = "".join(path.read_text() for path in sorted((tmp_path / "out").iterdir()))
    assert ['"0-0"' in written, '"1-0"' in written, "qxw" in written] == [True, True, False]


def test_datasets(model: snm.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets")
    perplexity = snm.TextPerplexity(model)
    rows = datasets.Dataset.from_dict({"text": TEXTS})
    scored = rows.map(lambda batch: {"ppl": perplexity(batch["text"])}, batched=True)
    assert list(scored["ppl"]) == pytest.approx(perplexity(TEXTS).tolist(), nan_ok=True)
    kept = rows.filter(lambda batch: perplexity(batch["text"]) <= 100, batched=True)
    assert list(kept["text"]) == [text for text, ppl in zip(TEXTS, perplexity(TEXTS), strict=True) if ppl <= 100]


def test_without_datatrove_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "snm.integrations.datatrove", raising=False)
    monkeypatch.setitem(sys.modules, "datatrove.pipeline.filters.base_filter", None)
    with pytest.raises(MissingExtra, match=r"pip install datatrove\[processing\]"):
        import snm.integrations.datatrove  # noqa: F401
