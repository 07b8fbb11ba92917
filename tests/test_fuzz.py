"""Hostile models: a sample of `make fuzz`, and that the fuzzer notices what must not be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from snm.errors import FormatError
from snm.storage import CHECKSUM, MANIFEST, read_manifest
from tests.fuzz import workers
from tests.fuzz.mutations import Files, mutate, mutate_arpa, read_files, reseal
from tests.fuzz.uses import write_files

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


def test_a_sample_of_the_campaign(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    command = ["-m", "tests.fuzz", "--quick", "--models", "1000", "--arpa", "200", "--output", str(output)]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    figures = json.loads(output.read_text())
    assert figures["failures"] == []
    assert sum(figures["outcomes"].values()) == 1200
    assert figures["outcomes"]["model: answered"] > 100
    assert figures["outcomes"]["model: refused"] > 300
    assert figures["outcomes"]["model: refused when it was used"] > 50
    assert figures["outcomes"]["arpa: answered"] > 5


def test_the_same_number_is_the_same_model() -> None:
    files = read_files(GOLDEN / "format3" / "snm")
    for number in range(50):
        one, other = (mutate(Random(number), files, [files]) for _ in range(2))
        assert one.done == other.done
        assert one.files == other.files
    data = (GOLDEN / "kneser-ney.arpa").read_bytes()
    assert mutate_arpa(Random(1), data).files == mutate_arpa(Random(1), data).files


def test_a_changed_file_gets_its_checksum(tmp_path: Path) -> None:
    files = read_files(GOLDEN / "format3" / "mixture")
    made: Files = {**files, "member0/data.npy": files["member0/data.npy"] + b"more"}
    write_files(tmp_path / "damaged", made)
    with pytest.raises(FormatError, match="bytes"):
        read_manifest(tmp_path / "damaged" / "member0")
    reseal(made)
    write_files(tmp_path / "whole", made)
    assert CHECKSUM in json.loads((tmp_path / "whole" / MANIFEST).read_text())
    read_manifest(tmp_path / "whole")
    read_manifest(tmp_path / "whole" / "member0")


class TestWatching:
    """A campaign whose models do what they must not."""

    def run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[..., str], models: int = 6
    ) -> workers.Figures:
        (tmp_path / "seeds" / "arpa").mkdir(parents=True)
        shutil.copytree(GOLDEN / "format3" / "backoff", tmp_path / "seeds" / "models" / "backoff")
        monkeypatch.setattr(workers, "use", use)
        campaign = workers.Campaign(tmp_path / "seeds", tmp_path / "work", seed=1)
        campaign.run("model", models)
        figures = campaign.figures
        assert sum(figures.tried.values()) == models
        assert sorted(failure["number"] for failure in figures.failures) == list(range(models))
        assert len(list((tmp_path / "work" / "failures").iterdir())) == models
        return figures

    def test_a_signal(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def crash(path: Path, scratch: Path, random: Random) -> str:
            os.kill(os.getpid(), signal.SIGSEGV)
            return ""

        figures = self.run(tmp_path, monkeypatch, crash)
        assert {failure["error"] for failure in figures.failures} == {"signal 11"}

    def test_a_hang(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def hang(path: Path, scratch: Path, random: Random) -> str:
            while True:
                time.process_time()

        monkeypatch.setattr(workers, "SECONDS", 0.05)
        figures = self.run(tmp_path, monkeypatch, hang, models=2)
        assert all(failure["error"].startswith("more than") for failure in figures.failures)

    def test_another_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(path: Path, scratch: Path, random: Random) -> str:
            raise KeyError("pages")

        figures = self.run(tmp_path, monkeypatch, fail)
        assert {failure["error"] for failure in figures.failures} == {"KeyError: 'pages'"}
        assert all(failure["where"][-1].endswith(" fail") for failure in figures.failures)

    def test_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def take(path: Path, scratch: Path, random: Random) -> str:
            return "answered" if np.ones(1 << 24).sum() else ""

        figures = self.run(tmp_path, monkeypatch, take, models=2)
        assert all("beyond twice" in failure["error"] for failure in figures.failures)

    def test_a_silent_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def leave(path: Path, scratch: Path, random: Random) -> str:
            os._exit(3)

        figures = self.run(tmp_path, monkeypatch, leave)
        assert {failure["error"] for failure in figures.failures} == {"exit 3"}


class TestUsing:
    def refused(self, message: str) -> bool:
        from tests.fuzz.uses import _refused

        def fail() -> None:
            raise FormatError(message)

        return _refused(fail)

    def test_errors_are_one_line(self) -> None:
        from tests.fuzz.uses import Failed

        assert self.refused("a line")
        for message in ("", "two\nlines", "x" * 10_000):
            with pytest.raises(Failed, match="not one line"):
                self.refused(message)
