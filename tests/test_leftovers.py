"""What runs that were killed leave behind, and runs that write to the same place at the same time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import snm
from snm import storage, system
from snm.errors import FormatError, ModelNotFound, SettingsError
from snm.progress import Notify, ignore
from snm.storage import MANIFEST, ModelWriter, replaced_file
from tests.test_cli import run

KILLED = """
import os, signal, sys
from pathlib import Path
from snm import storage, system
path, moment = Path(sys.argv[1]), sys.argv[2]

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

if moment == "export":
    with storage.replaced_file(str(path)) as stream:
        stream.write("half")
        stream.flush()
        die()
with storage.ModelWriter(path, force=True) as writer:
    writer.array("a", "<u4").append([1, 2, 3])
    if moment == "writing":
        die()
    if moment == "manifest":  # in the middle of its bytes
        write_bytes = Path.write_bytes
        Path.write_bytes = lambda path, data: (write_bytes(path, data[: len(data) // 2]), die())
    if moment == "whole":
        writer._swap = die
    if moment == "between":  # two renames, where the system cannot exchange folders
        system.exchange = lambda a, b: False
        rename = os.rename
        os.rename = lambda a, b: die() if Path(b) == path else rename(a, b)
    writer.finish({"made": "by a killed run"})
"""


def kill(path: Path, moment: str) -> None:
    """Run a writer of `path` that is killed at some moment."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), moment], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr


def write(
    path: Path, made: str, force: bool = True, said: Notify = ignore, meanwhile: Callable[[], object] = lambda: None
) -> None:
    with ModelWriter(path, force, said) as writer:
        writer.array("a", "<u4").append(np.arange(3))
        meanwhile()
        writer.finish({"made": made})


def made(path: Path) -> str:
    return str(storage.read_manifest(path)["made"])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
class TestKilled:
    def test_the_next_run_removes_what_a_killed_one_left(self, tmp_path: Path) -> None:
        kill(tmp_path / "m", "writing")
        assert [name for name in names(tmp_path) if name.startswith(".m.")]
        (tmp_path / ".m.12345678").mkdir()  # without a mark it is not ours
        said: list[str] = []
        write(tmp_path / "m", "new", said=said.append)
        assert names(tmp_path) == [".m.12345678", "m"]
        assert [line for line in said if "which a run left behind that was killed" in line] == said != []
        assert made(tmp_path / "m") == "new"

    def test_a_model_without_a_whole_manifest_is_removed(self, tmp_path: Path) -> None:
        kill(tmp_path / "m", "manifest")
        write(tmp_path / "m", "new", force=False)
        assert made(tmp_path / "m") == "new"
        assert names(tmp_path) == ["m"]

    def test_a_model_that_was_only_to_be_renamed_is_not_lost(self, tmp_path: Path) -> None:
        kill(tmp_path / "m", "whole")
        said: list[str] = []
        with pytest.raises(SettingsError, match="exists already"):
            write(tmp_path / "m", "new", force=False, said=said.append)
        assert made(tmp_path / "m") == "by a killed run"
        assert "is complete now" in said[0]
        assert names(tmp_path) == ["m"]

    def test_an_old_model_is_not_lost_between_two_renames(self, tmp_path: Path) -> None:
        write(tmp_path / "m", "old")
        kill(tmp_path / "m", "between")
        assert not (tmp_path / "m").exists()
        with pytest.raises(SettingsError, match="exists already"):
            write(tmp_path / "m", "new", force=False)
        assert names(tmp_path) == ["m"]
        assert made(tmp_path / "m") == "by a killed run"

    def test_a_killed_export(self, tmp_path: Path) -> None:
        kill(tmp_path / "m.arpa", "export")
        said: list[str] = []
        with replaced_file(str(tmp_path / "m.arpa"), said.append) as stream:
            stream.write("whole")
        assert (tmp_path / "m.arpa").read_text() == "whole"
        assert names(tmp_path) == ["m.arpa"]
        assert len(said) == 1

    def test_training_says_what_it_removes(self, corpus_file: Path, tmp_path: Path) -> None:
        kill(tmp_path / "m", "writing")
        done = run("train", corpus_file, "-o", tmp_path / "m", "--model", "kn", "--order", 2, "--threads", 1)
        assert "a run left behind that was killed" in done.stderr
        assert names(tmp_path) == ["m"]


class TestTogether:
    def test_a_run_that_is_alive_is_left_alone(self, tmp_path: Path) -> None:
        said: list[str] = []
        with ModelWriter(tmp_path / "m", force=True) as first:
            first.array("a", "<u4").append(np.arange(3))
            write(tmp_path / "m", "second", said=said.append)
            assert made(tmp_path / "m") == "second"
            first.finish({"made": "first"})
        assert made(tmp_path / "m") == "first"
        assert said == []
        assert names(tmp_path) == ["m"]

    @pytest.mark.parametrize("can_exchange", [True, False])
    @pytest.mark.parametrize("there", [True, False])
    def test_writers_that_finish_at_the_same_moment(
        self, can_exchange: bool, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, writers = tmp_path / "m", 4
        if there:
            write(path, "before")
        if not can_exchange:
            monkeypatch.setattr(system, "exchange", lambda a, b: False)
        rename, failed, begun = os.rename, [], threading.Barrier(writers)

        def slow_rename(a: Path, b: Path) -> None:
            threading.Event().wait(0.001)  # other threads run between two renames
            rename(a, b)

        monkeypatch.setattr(os, "rename", slow_rename)

        def work(number: int) -> None:
            try:
                with ModelWriter(path, force=True) as writer:
                    writer.array("a", "<u4").append(np.arange(number))
                    begun.wait()
                    writer.finish({"made": str(number)})
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert names(tmp_path) == ["m"]
        assert np.load(path / "a.npy").tolist() == list(range(int(made(path))))

    def test_a_reader_waits_between_two_renames(
        self, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @contextmanager
        def turn(path: Path) -> Iterator[bool]:  # which comes when the writer has renamed the model
            shutil.copytree(model_path, path)
            yield True

        monkeypatch.setattr(storage, "turn", turn)
        with pytest.raises(ModelNotFound):
            snm.load(tmp_path / "m")
        (tmp_path / ".m.lock").touch()
        assert snm.load(tmp_path / "m") == snm.load(model_path)

    def test_two_processes(self, corpus_file: Path, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "snm", "train", str(corpus_file), "-o", str(tmp_path / "m"), "--force"]
        both = [
            subprocess.Popen([*command, "--model", "kn", "--order", order, "--threads", "1"], stderr=subprocess.PIPE)
            for order in ("2", "3")
        ]
        for process in both:
            _, said = process.communicate()
            assert process.returncode == 0, said
        assert names(tmp_path) == ["m"]
        assert run("verify", tmp_path / "m", "--contexts", 5).exit_code == 0

    def test_a_model_that_cannot_be_renamed_is_kept_for_good(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="the model is in") as caught:
            write(tmp_path / "m", "this", force=False, meanwhile=lambda: write(tmp_path / "m", "another"))
        kept = Path(str(caught.value).rpartition(" ")[2])
        write(tmp_path / "m", "a third")
        assert made(kept) == "this"
        assert names(tmp_path) == sorted(["m", kept.name])

    def test_a_note_in_the_folder_costs_no_training(self, tmp_path: Path) -> None:
        write(tmp_path / "m", "before")
        with pytest.raises(SettingsError, match="is not part of the model") as caught:
            write(tmp_path / "m", "this", meanwhile=lambda: (tmp_path / "m" / "notes.txt").write_text("precious"))
        assert made(Path(str(caught.value).rpartition(" ")[2])) == "this"
        assert (tmp_path / "m" / "notes.txt").read_text() == "precious"

    def test_a_disk_without_locks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_locks(*arguments: object) -> bool:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(system, "lock", no_locks)
        with ModelWriter(tmp_path / "m", force=True) as first:
            write(tmp_path / "m", "second")
            first.finish({"made": "first"})
        assert made(tmp_path / "m") == "first"
        assert names(tmp_path) == ["m"]


class TestCheckpoints:
    @pytest.fixture
    def saved(self, corpus_file: Path, tmp_path: Path) -> Path:
        """The folder of a model whose training was interrupted after a checkpoint."""
        pytest.importorskip("torch")
        from snm.baselines.neural import checkpoints

        with pytest.MonkeyPatch.context() as patch:
            save = checkpoints.Checkpoint.save

            def save_and_stop(self: checkpoints.Checkpoint, fit: object) -> None:
                save(self, fit)  # type: ignore[arg-type]
                raise KeyboardInterrupt

            patch.setattr(checkpoints.Checkpoint, "save", save_and_stop)
            with pytest.raises(KeyboardInterrupt):
                self.train(corpus_file, tmp_path / "m")
        return tmp_path / "m"

    def train(self, corpus_file: Path, path: Path) -> list[str]:
        from snm.baselines.neural.settings import NetworkSettings
        from snm.pipeline import train
        from snm.settings import Settings

        said: list[str] = []
        network = NetworkSettings(slots=4096, batch=256, passes=2, checkpoint=1e-9)
        train(corpus_file, path, Settings(model="hsme", order=2, network=network, engine="cpu"), notify=said.append)
        return said

    @pytest.mark.parametrize("complete", [True, False])
    def test_a_run_that_was_killed_between_two_renames_resumes(
        self, saved: Path, complete: bool, corpus_file: Path
    ) -> None:
        folder = saved.with_name("m.checkpoint")
        os.rename(folder, saved.with_name("m.checkpoint.old"))
        if complete:
            shutil.copytree(saved.with_name("m.checkpoint.old"), saved.with_name("m.checkpoint.new"))
        assert any("resuming from" in line for line in self.train(corpus_file, saved))
        assert names(saved.parent) == ["m"]

    def test_a_run_that_is_alive_keeps_its_checkpoint(self, saved: Path, corpus_file: Path) -> None:
        with storage.turn(saved.with_name("m.checkpoint")):
            said = self.train(corpus_file, saved)
        assert any("this one makes no checkpoints" in line for line in said)
        assert names(saved.parent) == ["m", "m.checkpoint"]

    def test_a_full_disk_costs_no_training(
        self, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("torch")

        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("snm.baselines.neural.checkpoints.Checkpoint.save", full)
        said = self.train(corpus_file, tmp_path / "m")
        assert any("no checkpoint: [Errno 28]" in line for line in said)
        assert (tmp_path / "m" / MANIFEST).exists()

    @pytest.mark.parametrize("damage", ["empty", "report", "array", "zip", "missing", "list"])
    def test_a_damaged_checkpoint_is_refused_in_a_line(self, saved: Path, damage: str, corpus_file: Path) -> None:
        folder = saved.with_name("m.checkpoint")
        state, array = json.loads((folder / "state.json").read_text()), sorted(folder.glob("*.npy"))[0]
        if damage == "empty":
            array.write_bytes(b"")
        elif damage == "zip":
            array.write_bytes(b"PK\x03\x04 not a zip file")
        elif damage == "array":
            np.save(array, np.zeros(1))
        elif damage == "missing":
            for path in folder.glob("*.npy"):
                path.unlink()
        else:
            state = [] if damage == "list" else {**state, "report": {**state["report"], "passes": "x"}}
            (folder / "state.json").write_text(json.dumps(state))
        with pytest.raises(FormatError, match=r"is not a checkpoint .*delete it to train from the start"):
            self.train(corpus_file, saved)
