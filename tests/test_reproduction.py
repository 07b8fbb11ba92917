"""The paper's tables on a small corpus; results are kept and used again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from snm.adjustment.metafeatures import MetafeatureSet
from snm.baselines.neural.settings import NetworkSettings
from snm.errors import InputError, SettingsError
from snm.evaluation import speed
from snm.reproduction.plots import plot_frontier
from snm.reproduction.tables import TABLES, Limits, settings_of
from snm.reproduction.workspace import Workspace, find_texts
from tests.test_cli import fails, run


@pytest.fixture(scope="module")
def corpus(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "small"
    folder.mkdir()
    lines = corpus_file.read_text().strip().split("\n")
    for part, chosen in (("train", lines[:300]), ("valid", lines[300:350]), ("test", lines[350:])):
        (folder / f"{part}.txt").write_text("\n".join(chosen))
    return folder


@pytest.fixture(scope="module")
def workspace(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("snm.reproduction.workspace.speed", lambda path, text: 1000.0)
        yield Workspace(tmp_path_factory.mktemp("work") / "w", corpus)


@pytest.mark.parametrize("name", TABLES)
def test_every_table(workspace: Workspace, name: str) -> None:
    if name == "table3":
        pytest.importorskip("torch")
    rows = workspace.table(name)
    assert [row["model"] for row in rows] == [line.label for line in TABLES[name]]
    for row, line in zip(rows, TABLES[name], strict=True):
        assert row["test"] > 1
        if len(line.members) > 1:
            assert sum(row["weights"]) == pytest.approx(1, abs=1e-3)
            alone = [workspace.row(type(line)(m, (m,), 1.0))["valid"] for m in line.members]
            assert row["valid"] <= min(alone) + 1e-6
        elif line.members == ("kn5",):
            assert row["test / KN5"] == 1


def test_finished_models_are_used_again(workspace: Workspace, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = workspace.table("table2")

    def no(*args: object, **more: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("snm.reproduction.workspace.train", no)
    assert Workspace(workspace.folder, corpus).table("table2") == before
    assert not list(workspace.folder.glob("*.model")), "models are not kept unless asked for"


def test_networks_are_left_out_without_torch(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snm.reproduction.workspace.find_spec", lambda name: None)
    monkeypatch.setattr("snm.reproduction.workspace.speed", lambda path, text: 1000.0)
    said: list[str] = []
    rows = Workspace(tmp_path / "w", corpus, notify=said.append).table("table3")
    assert [row["model"] for row in rows] == [
        "KN5", "SBO", "SNM5-skip", "SNM10-skip", "SNM10-skip, our estimation",
    ]  # fmt: skip
    (line,) = [line for line in said if "left out" in line]
    assert "hsme5, lstm1024, rnn1024, rnn256, rnn512: PyTorch is not installed" in line


def test_chosen_models_only(corpus: Path, tmp_path: Path) -> None:
    work = Workspace(tmp_path / "w", corpus)
    work.train_only(["kn5"], ["table1"])
    assert work.figures.keys() == {"corpus", "kn5"}
    with pytest.raises(SettingsError, match=r"no model 'rnn256' in these tables; expected some of .*kn8"):
        work.train_only(["rnn256"], ["table1"])


def test_results_of_another_folder_are_used(workspace: Workspace, corpus: Path, tmp_path: Path) -> None:
    before = workspace.row(TABLES["table1"][0])
    other = Workspace(tmp_path / "w", corpus, limits=Limits(prune=2))
    other.take(workspace.folder)
    assert other.row(TABLES["table1"][0]) == before
    assert "snm5" not in other.figures, "it depends on --prune"
    with pytest.raises(InputError, match="no results to take"):
        other.take(tmp_path)
    (tmp_path / "figures.json").write_text(json.dumps({"corpus": "novels, test.txt"}))
    with pytest.raises(SettingsError, match=r"holds results of novels, test\.txt, not of small"):
        other.take(tmp_path)


def test_speeds_are_measured(model_path: Path, corpus: Path) -> None:
    assert speed(model_path, corpus / "test.txt") > 100


def test_the_frontier_is_drawn(workspace: Workspace, tmp_path: Path) -> None:
    rows = [workspace.row(line) for line in TABLES["table1"][:5]]
    plot_frontier("small", rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_every_model_of_the_tables_has_settings() -> None:
    names = {name for lines in TABLES.values() for line in lines for name in line.members}
    assert (settings_of("kn7").model, settings_of("kn7").order) == ("kn", 7)
    assert (settings_of("hsme5").model, settings_of("hsme5").order) == ("hsme", 5)
    assert settings_of("lstm512").network == NetworkSettings(cell="lstm", hidden=512)
    assert settings_of("snm10-skip").gate == 0, "the paper has none"
    expected = MetafeatureSet.parse("all", feature_buckets="double", link_buckets="double", merge=False)
    assert settings_of("snm10-skip").training.metafeatures == expected
    assert len(expected.masks()) == 127
    masks = {name: len(settings_of(name).training.metafeatures.conjunctions) for name in names if "doubled" in name}
    assert len(masks) == 7
    assert set(masks.values()) == {31, 15}


def test_the_command_writes_markdown_json_and_a_plot(corpus: Path, tmp_path: Path) -> None:
    result = run("reproduce", "table2", "--corpus", corpus, "-o", tmp_path / "w", "--threads", "1")
    assert result.exit_code == 0, result.output
    assert "| SNM5-skip |" in result.stdout
    assert (tmp_path / "w" / "table2.md").read_text() == result.stdout.rstrip("\n") + "\n"
    assert len(json.loads((tmp_path / "w" / "table2.json").read_text())["rows"]) == 4
    assert (tmp_path / "w" / "table2.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_tables_are_printed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    result = run("reproduce", "table2", "--corpus", corpus, "-o", tmp_path / "w", "--threads", "1", "--json")
    assert result.exit_code == 0, result.output
    assert "pip install matplotlib" in result.stderr
    assert json.loads(result.stdout)["table"] == "table2"


def test_the_released_one_billion_word_folder_is_read(corpus_file: Path, tmp_path: Path) -> None:
    """The released folder has 99 training shards and 50 held-out shards; this miniature has 3 of each."""
    root = tmp_path / "lm1b"
    released = root / "1-billion-word-language-modeling-benchmark-r13output"
    lines = corpus_file.read_text().strip().split("\n")
    for folder, name, n in (
        ("training-monolingual.tokenized.shuffled", "news.en-{:05d}-of-00100", 80),
        ("heldout-monolingual.tokenized.shuffled", "news.en.heldout-{:05d}-of-00050", 20),
    ):
        (released / folder).mkdir(parents=True)
        for i in range(3):
            (released / folder / name.format(i)).write_text("\n".join(lines[i * n : (i + 1) * n]) + "\n")
    texts = find_texts(root)
    assert texts["test"].name == "news.en.heldout-00000-of-00050"
    assert texts["valid"].name == "news.en.heldout-00001-of-00050"
    assert find_texts(root, 2)["valid"].name == "news.en.heldout-00000-of-00050"
    work = Workspace(tmp_path / "w", root)
    assert work.row(TABLES["table1"][0])["test"] > 1
    targets = sum(len(line.split()) + 1 for line in lines[:20])
    assert len(work.probabilities("kn5")["test"]) == targets, "every word and sentence end of the shard"
    with pytest.raises(InputError, match="3 held-out shards"):
        find_texts(root, 3)
    with pytest.raises(SettingsError, match="holds results of"):
        Workspace(tmp_path / "w", root, shard=1)


def test_invalid_arguments_are_refused(workspace: Workspace, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no table 'table9'"):
        workspace.table("table9")
    with pytest.raises(InputError, match="expected one of train, valid and test each"):
        Workspace(tmp_path / "w", tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    for part in ("train", "valid", "test"):
        (other / f"{part}.txt").write_text("a b c")
    with pytest.raises(SettingsError, match="holds results of small"):
        Workspace(workspace.folder, other)
    assert "no table" in fails("reproduce", "table9", "--corpus", corpus, "-o", workspace.folder)


def test_departures_from_the_paper_are_listed_and_kept_apart(corpus: Path, tmp_path: Path) -> None:
    arguments = ("reproduce", "table2", "--corpus", corpus, "-o", tmp_path / "w", "--threads", "1")
    result = run(*arguments, "--prune", "2", "--events", "50")
    assert result.exit_code == 0, result.output
    assert "features seen fewer than 2 times left out, about 50 events to train on" in result.stdout
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "choose another folder" in refused.output
    assert settings_of("snm5-skip", Limits(prune=2)).prune == 2
    assert settings_of("kn5", Limits(prune=2)) == settings_of("kn5")
