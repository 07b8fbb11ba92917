"""Faults: a sample of `make faults`, the shim that makes writes fail, and temporary folders of killed processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from snm import pipeline, storage, system
from snm.errors import SettingsError
from snm.filtering import filter_text
from snm.scratch import PREFIX, scratch_folder
from snm.settings import Settings
from snm.storage import ModelWriter, replaced_file
from tests.test_cli import run
from tests.test_leftovers import made, names, write

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden" / "format3"
SAMPLE = "train --resume,train kn --size,mix,prune,export,merge"
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


@needs_linux
def test_a_sample_of_the_campaign(tmp_path: Path) -> None:
    command = ["-m", "tests.faults", "--count", "2", "--sentences", "300", "--cases", SAMPLE, "--folder", str(tmp_path)]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    assert '"lost": []' in done.stdout
    assert '"kill at a change: killed": 12' in done.stdout
    assert list(tmp_path.iterdir()) == []


WRITES = """
import os, sys
from pathlib import Path
from tests.faults.shim import Shim
root, at, action = sys.argv[1], int(sys.argv[2]), sys.argv[3]
shim = Shim(root, at, action)
shim.install()
try:
    Path(root, "a").write_bytes(b"12345678")
    with open(Path(root, "b"), "wb", buffering=0) as file:
        os.pwritev(file.fileno(), [b"abcdefgh"], 0)
    os.rename(Path(root, "a"), Path(root, "c"))
    os.unlink(Path(root, "b"))
finally:
    print(*[change.split()[0] for change in shim.changes])
"""


@needs_linux
class TestShim:
    def run(self, folder: Path, at: int, action: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WRITES, str(folder), str(at), action]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    def test_every_change_is_counted(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, -1, "none")
        assert done.stdout.split() == ["create", "write", "create", "write", "rename", "unlink"]

    @pytest.mark.parametrize(
        ("at", "left"),
        [
            (0, {}),
            (1, {"a": b"1234"}),
            (2, {"a": b"12345678"}),
            (3, {"a": b"12345678", "b": b"abcd"}),
            (4, {"a": b"12345678", "b": b"abcdefgh"}),
            (5, {"c": b"12345678", "b": b"abcdefgh"}),
        ],
    )
    def test_a_process_is_killed_before_a_change_or_in_the_middle_of_a_write(
        self, at: int, left: dict[str, bytes], tmp_path: Path
    ) -> None:
        assert self.run(tmp_path, at, "kill").returncode == -signal.SIGKILL
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left

    @pytest.mark.parametrize("action", ["ENOSPC", "EIO"])
    @pytest.mark.parametrize("at", range(4))
    def test_a_write_fails(self, at: int, action: str, tmp_path: Path) -> None:
        done = self.run(tmp_path, at, action)
        if action == "ENOSPC" and at == 3:
            assert done.returncode == 0, "a short write, which this caller does not notice"
            return
        assert done.returncode == 1
        assert os.strerror(getattr(errno, action)) in done.stderr


class TestScratchFolders:
    LEAVE = """
import os, signal, sys
from pathlib import Path
from snm.scratch import scratch_folder
with scratch_folder(parent=Path(sys.argv[1])) as folder:
    (folder / "file").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""

    def leave(self, parent: Path) -> Path:
        """The folder of a process that was killed."""
        done = subprocess.run([sys.executable, "-c", self.LEAVE, str(parent)], cwd=ROOT, check=False)
        assert done.returncode == -signal.SIGKILL
        (found,) = parent.glob(f"{PREFIX}*")
        return found

    @needs_linux
    def test_the_next_run_removes_what_a_killed_one_left(self, tmp_path: Path) -> None:
        left = self.leave(tmp_path)
        with scratch_folder(parent=tmp_path) as alive:
            assert not left.exists()
            said: list[str] = []
            for name in (f"{PREFIX}mine", "snm-mine", f"{PREFIX}abcdefgh.txt"):
                (tmp_path / name).mkdir()
            (tmp_path / f"{PREFIX}linked00").symlink_to(ROOT / "tests", target_is_directory=True)
            with scratch_folder(said.append, tmp_path) as second:
                assert alive.exists()
                assert second != alive
        assert said == []
        assert not alive.exists()
        assert (ROOT / "tests" / "faults").exists()
        assert len(names(tmp_path)) == 4

    @needs_linux
    def test_it_says_so(self, tmp_path: Path) -> None:
        left, said = self.leave(tmp_path), list[str]()
        with scratch_folder(said.append, tmp_path):
            pass
        assert said == [f"removing {left}, which a run left behind that was killed"]
        assert names(tmp_path) == []

    def test_a_folder_that_another_takes_for_a_dead_one_is_made_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock, taken = system.lock_folder, list[Path]()

        def lock_late(folder: Path, wait: bool = False) -> int | None:
            if not taken:
                taken.append(folder)
                handle = lock(folder, wait)
                folder.rmdir()
                return handle
            return lock(folder, wait)

        monkeypatch.setattr(system, "lock_folder", lock_late)
        with scratch_folder(parent=tmp_path) as folder:
            assert (folder.exists(), taken[0].exists()) == (True, False) or sys.platform == "win32"

    def test_a_system_that_locks_no_folders(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(system, "lock_folder", lambda folder, wait=False: None)
        (tmp_path / f"{PREFIX}00000000").mkdir()
        with scratch_folder(parent=tmp_path) as folder:
            assert folder.exists()
        assert names(tmp_path) == [f"{PREFIX}00000000"]


class TestLastSteps:
    """What fails when the new model has its name, or was about to get one."""

    def failing(self, number: int) -> Callable[[Path], None]:
        def sync(path: Path) -> None:
            if path.is_dir():
                raise OSError(number, os.strerror(number), str(path))

        return sync

    def test_a_folder_that_cannot_be_synced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The old model was once renamed then, and called the new one."""
        write(tmp_path / "m", "old")
        sync, fail = system.sync, self.failing(errno.EIO)
        monkeypatch.setattr(system, "sync", lambda path: (fail if path == tmp_path else sync)(path))
        with pytest.raises(OSError, match="Input/output"):
            write(tmp_path / "m", "new")
        assert made(tmp_path / "m") == "new"
        assert names(tmp_path) == ["m"]

    def test_a_file_whose_folder_cannot_be_synced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(system, "sync", self.failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output"), replaced_file(str(tmp_path / "f")) as stream:
            stream.write("whole")
        assert names(tmp_path) == ["f"]

    def test_what_was_being_written_when_a_run_was_killed_is_no_work_of_another(
        self, corpus_file: Path, tmp_path: Path
    ) -> None:
        for folder, half in (("m.work", ".training.json.0123abcd"), ("f.work", ".filter.json.0123abcd")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / half).write_text('{"half')
        settings = Settings(model="kn", order=2, threads=1, resume=True)
        pipeline.train(corpus_file, tmp_path / "m", settings).close()
        filter_text(GOLDEN / "backoff", corpus_file, tmp_path / "f", keep=0.5, spelled=False, resume=True)
        assert names(tmp_path) == ["f", "m"]
        (tmp_path / "m.work").mkdir()
        (tmp_path / "m.work" / "thesis.txt").write_text("mine")
        with pytest.raises(SettingsError, match="is not the work of a training"):
            pipeline.train(corpus_file, tmp_path / "m", settings, force=True)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_process_without_memory_ends_with_a_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("snm.text.encoding._read_ahead", fail)
    done = run("ppl", GOLDEN / "backoff", GOLDEN.parent / "text.txt")
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert "out of memory; give less --memory" in line


def test_an_unfinished_array_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(array: storage.ArrayWriter, block: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage.ArrayWriter, "append", full)
    with pytest.raises(OSError, match="No space"), ModelWriter(tmp_path / "m") as writer:
        writer.array("a", "<u4").append([1])  # type: ignore[arg-type]
    assert names(tmp_path) == []
