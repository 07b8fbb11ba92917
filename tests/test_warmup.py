"""Kernels are compiled ahead of work, with a message and a bar of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snm import warmup
from snm.cli.warmup import KERNELS
from snm.kernels.matrix_writing import write_pages
from snm.settings import Settings
from tests.test_cli import ok

GOLDEN = Path(__file__).parent / "golden" / "format3"
COUNTED = """
import sys
from numba.core import event
compiled = event.RecordingListener()
event.register("numba:compile", compiled)
from snm.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("compiled", sum(e.is_end for _, e in compiled.buffer))
"""


def run_counted(cache: Path | None, *arguments: str | Path) -> tuple[int, str]:
    """(functions compiled, standard error) of a command in a new process."""
    environment = os.environ | ({"NUMBA_CACHE_DIR": str(cache)} if cache else {})
    command = [sys.executable, "-c", COUNTED, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("compiled")[-1]), done.stderr


def test_the_first_prediction_on_a_machine_says_that_it_compiles(tmp_path: Path) -> None:
    model = GOLDEN / "snm"
    compiled, messages = run_counted(tmp_path, "next", model, "the")
    assert "compiling kernels for this machine" in messages
    assert compiled == pytest.approx(KERNELS["next"], rel=0.2)
    assert run_counted(tmp_path, "next", model, "the") == (0, "")


def test_nothing_is_left_to_compile_after_a_warmup(tmp_path: Path) -> None:
    assert "kernels are compiled" in ok("warmup")
    text = tmp_path / "text"
    text.write_text("".join(f"{sentence}\n" for sentence in warmup.sentences(1000)))
    for name, more in (("snm", ["--dev", str(text)]), ("kn", [])):
        model = tmp_path / name
        train = ["train", str(text), "-o", str(model), "--model", name, *more]
        for command in (train, ["ppl", str(model), str(text)], ["next", str(model)], ["verify", str(model)]):
            compiled, messages = run_counted(None, *command)
            assert not compiled, command
            assert "compiling" not in messages


def test_settings_are_ready_when_their_last_kernels_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "is_cached", lambda kernel: kernel is not write_pages)
    assert not warmup.is_ready(Settings())
    assert warmup.is_ready(Settings(model="kn"))
    assert warmup.is_ready(Settings(model="rnn")), "a network has no kernels"
