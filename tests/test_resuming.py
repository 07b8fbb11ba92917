"""A training that was killed goes on from what it has finished."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm import pipeline, preparing
from snm.cluster import tasks
from snm.cluster.work import name_of, read_mark
from snm.errors import SettingsError
from snm.remote import Folder
from snm.resuming import Kept
from snm.settings import Settings
from tests.conftest import SMALL_SKIPS, write_bigrams
from tests.test_cluster import ENVIRONMENT, contents, names, wait_for
from tests.test_terminal import needs_unix

BASE: dict[str, Any] = {
    "features": f"{SMALL_SKIPS} + class(words=1..2)",
    "classes": 8,
    "min_count": 1,
    "threads": 1,
    "gate": 4,
    "folds": 0,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "train.txt"
    write_bigrams(path, 1, 6000, 300, 4)
    return path


@pytest.fixture(scope="module")
def expected(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("expected") / "m"
    pipeline.train(text, path, Settings(**BASE)).close()
    return contents(path)


class Killed(Exception):
    """Stands for the end of a process."""


def fail(*arguments: object, **more: object) -> None:
    raise Killed


STAGES: dict[str, tuple[str, list[str]]] = {  # the function that fails, and those that are not called again
    "hold_out": ("hold_out", ["read_corpus"]),
    "choose_events": ("choose_events", ["read_corpus", "learn_classes"]),
    "adjust": ("train_adjustment", ["read_corpus", "learn_classes"]),
    "build": ("build", ["read_corpus", "learn_classes", "train_adjustment"]),
    "fit_gate": ("fit_gate", ["read_corpus", "learn_classes", "train_adjustment"]),
    "finish": ("finish_snm", ["read_corpus", "learn_classes", "train_adjustment"]),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_training_goes_on_after_each_stage(
    stage: str, text: Path, tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, (failing, spared) = Settings(**BASE, resume=True), STAGES[stage]
    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, failing, fail)
        with pytest.raises(Killed):
            pipeline.train(text, tmp_path / "m", settings, notify=said.append)
    assert said[-1] == f"what is finished is kept in {tmp_path / 'm.work'}; the same command goes on from there"
    assert names(tmp_path) == ["m.work"]
    for name in spared:
        monkeypatch.setattr(preparing if name == "read_corpus" else pipeline, name, fail)
    pipeline.train(text, tmp_path / "m", settings, notify=said.append).close()
    assert f"going on with the work in {tmp_path / 'm.work'}" in said
    assert contents(tmp_path / "m") == expected
    assert names(tmp_path) == ["m"]


def test_a_training_goes_on_after_a_partition(
    text: Path, tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, counted = Settings(**BASE, resume=True, partitions=5), list[int]()
    count = tasks.count

    def noted(limit: int) -> Callable[[int, int, str, str], None]:
        def work(shard: int, shards: int, source: str, target: str) -> None:
            if len(counted) == limit:
                raise Killed
            if read_mark(Folder(target), name_of("count", shard, shards)) is None:
                counted.append(shard)
            count(shard, shards, source, target)

        return work

    monkeypatch.setitem(tasks.TASKS, "count", noted(3))
    with pytest.raises(Killed):
        pipeline.train(text, tmp_path / "m", settings)
    monkeypatch.setitem(tasks.TASKS, "count", noted(99))
    pipeline.train(text, tmp_path / "m", settings).close()
    assert counted == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]  # in the end once more, with the slice that was held out
    assert contents(tmp_path / "m") == expected


@needs_unix
@pytest.mark.parametrize("file", ["text.json", "0/count-00002-of-00006.json", "adjustment.json", "1/shards.json"])
def test_a_process_that_was_killed(file: str, text: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    options = [
        "--features",
        BASE["features"],
        "--classes",
        8,
        "--min-count",
        1,
        "--threads",
        1,
        "--gate",
        4,
        "--folds",
        0,
    ]
    options += ["-o", tmp_path / "m", "--partitions", 6, "--resume"]
    command = [sys.executable, "-m", "snm", "train", text, *options]
    process = subprocess.Popen([str(part) for part in command], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    wait_for(tmp_path, f"m.work/{file}")
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run([str(part) for part in command], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "going on with the work" in done.stderr
    assert contents(tmp_path / "m") == expected
    assert names(tmp_path) == ["m"]


def test_a_run_that_was_killed_while_it_removed_its_work(
    text: Path, tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, said = Settings(**BASE, resume=True), list[str]()
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "remove", fail)
        with pytest.raises(Killed):
            pipeline.train(text, tmp_path / "m", settings)
    (tmp_path / "m.work" / "0" / "vocabulary").unlink()
    pipeline.train(text, tmp_path / "m", settings, force=True, notify=said.append).close()
    assert f"removing {tmp_path / 'm.work'}, which a run left behind that was killed" in said
    assert contents(tmp_path / "m") == expected
    assert names(tmp_path) == ["m"]


def test_a_backoff_model(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(model="kn", order=3, threads=1, resume=True)
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "smooth", fail)
        with pytest.raises(Killed):
            pipeline.train(text, tmp_path / "m", settings)
    monkeypatch.setattr("snm.preparing.read_corpus", fail)
    pipeline.train(text, tmp_path / "m", settings).close()
    monkeypatch.undo()
    pipeline.train(text, tmp_path / "n", Settings(model="kn", order=3, threads=1)).close()
    assert contents(tmp_path / "m") == contents(tmp_path / "n")
    assert names(tmp_path) == ["m", "n"]


class TestMistakes:
    @pytest.fixture
    def unfinished(self, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        copy = tmp_path / "train.txt"
        copy.write_bytes(text.read_bytes())
        with monkeypatch.context() as patched:
            patched.setattr(pipeline, "hold_out", fail)
            with pytest.raises(Killed):
                pipeline.train(copy, tmp_path / "m", Settings(**BASE, resume=True))
        return copy

    def test_another_training(self, unfinished: Path, tmp_path: Path) -> None:
        other = Settings(**{**BASE, "gate": 5}, resume=True)
        with pytest.raises(SettingsError, match="has the work of another training: gate was 4, and is 5; remove"):
            pipeline.train(unfinished, tmp_path / "m", other)
        assert (tmp_path / "m.work").is_dir()

    def test_text_that_has_changed(self, unfinished: Path, tmp_path: Path) -> None:
        with open(unfinished, "a") as file:
            file.write("one more line\n")
        with pytest.raises(SettingsError, match="has the work of another training: text was"):
            pipeline.train(unfinished, tmp_path / "m", Settings(**BASE, resume=True))

    def test_damaged_files_are_made_again(self, unfinished: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
        tokens = tmp_path / "m.work" / "text-tokens"
        data = bytearray(tokens.read_bytes())
        data[100] ^= 1
        tokens.write_bytes(data)
        pipeline.train(unfinished, tmp_path / "m", Settings(**BASE, resume=True)).close()
        assert contents(tmp_path / "m") == expected

    def test_two_runs_at_once(self, unfinished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = Settings(**BASE, resume=True)

        def second(*arguments: object) -> None:
            with pytest.raises(SettingsError, match=r"m.work is in use by another run"):
                pipeline.train(unfinished, tmp_path / "m", settings)
            raise Killed

        monkeypatch.setattr(pipeline, "hold_out", second)
        with pytest.raises(Killed):
            pipeline.train(unfinished, tmp_path / "m", settings)

    def test_a_folder_of_something_else(self, text: Path, tmp_path: Path) -> None:
        (tmp_path / "m.work").mkdir()
        (tmp_path / "m.work" / "thesis.txt").write_text("mine")
        with pytest.raises(SettingsError, match="exists and is not the work of a training"):
            pipeline.train(text, tmp_path / "m", Settings(**BASE, resume=True))
        assert (tmp_path / "m.work" / "thesis.txt").read_text() == "mine"

    def test_what_cannot_be_resumed(self, text: Path, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="the text is not in files"):
            pipeline.train(iter(["a b"]), tmp_path / "m", Settings(**BASE, resume=True))
        with pytest.raises(SettingsError, match="checkpoints"):
            Settings(model="rnn", resume=True)
        with pytest.raises(SettingsError, match="other engines than gpu"):
            Settings(engine="gpu", resume=True)
        vocabulary = tmp_path / "words"
        vocabulary.write_text("a\nb\n")
        with pytest.raises(SettingsError, match="resume is for training"):
            snm.count_text(text, tmp_path / "c", Settings(order=2, vocab=vocabulary, resume=True))
        counted = snm.count_text(text, tmp_path / "c", Settings(order=2, vocab=vocabulary))
        with pytest.raises(SettingsError, match="is counted already; leave out resume"):
            pipeline.train(None, tmp_path / "m", Settings(resume=True), counts=counted)
        assert names(tmp_path) == ["c", "words"]


def test_a_work_folder(text: Path, tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(**BASE, resume=True, work=str(tmp_path / "scratch"))
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "build", fail)
        with pytest.raises(Killed):
            pipeline.train(text, tmp_path / "m", settings)
    assert names(tmp_path) == ["scratch"]
    assert names(tmp_path / "scratch") == ["m.work"]
    pipeline.train(text, tmp_path / "m", settings).close()
    assert contents(tmp_path / "m") == expected
    assert names(tmp_path / "scratch") == []


def test_a_stage_is_kept_whole(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    kept, array = Kept(folder), np.arange(10, dtype="<u4")
    assert kept.load("stage") is None
    kept.save("stage", {"n": 1}, numbers=array)
    found = kept.load("stage")
    assert found is not None
    assert found[0] == {"n": 1}
    assert np.array_equal(found[1]["numbers"], array)
    (tmp_path / "stage.json").write_bytes(b"{")
    assert kept.load("stage") is None
    assert Kept().load("stage") is None
