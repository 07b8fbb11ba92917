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


def test_the_second_process_fills_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And runs no file of the current folder, which may have a space in its name."""
    folder = tmp_path / "a folder"
    (folder / "snm").mkdir(parents=True)
    (folder / "snm" / "__init__.py").write_text("raise AssertionError")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder / "kernels"))
    monkeypatch.setattr(warmup, "default_threads", lambda: 2)
    with warmup._second_process(Settings(threads=2)) as process:
        assert process is not None
        assert process.wait() == 0
    for name in ("rows.fill", "adjustment.weigh_rows", "adjustment.weigh_singles"):
        assert list(folder.rglob(f"{name}-*.nbc")), name


TYPES = """
import sys
from snm import warmup
from snm.kernels import adjustment, count_codes, rows
from snm.settings import Settings

codes = count_codes.plan_chunks, count_codes.encode_chunks, count_codes.decode_chunks
kernels = *codes, adjustment.weigh_singles, adjustment.weigh_rows, rows.fill
warmup.compile_beside(int(sys.argv[1]) // 8)
beside = [kernel.signatures for kernel in kernels]
warmup.compile_training(Settings(threads=1, weight_bits=int(sys.argv[1])))
assert all(beside) and beside == [kernel.signatures for kernel in kernels]
"""


@pytest.mark.parametrize("bits", ["8", "16"])
def test_the_second_process_compiles_for_the_types_of_a_training(bits: str) -> None:
    done = subprocess.run([sys.executable, "-c", TYPES, bits], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_is_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(warmup, "default_threads", lambda: 2)
    with pytest.raises(KeyboardInterrupt), warmup._second_process(Settings(threads=2)) as process:  # noqa: PT012
        assert process is not None
        assert process.poll() is None
        raise KeyboardInterrupt
    assert process is not None
    assert process.returncode is not None
    # a parent that is killed closes the pipe
    command = [sys.executable, "-P", "-m", "snm.warmup", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 1
    assert not list(tmp_path.rglob("rows.fill-*"))


def test_a_second_process_that_fails_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "default_threads", lambda: 2)
    settings = Settings(threads=2)
    for executable in (str(tmp_path / "no python"), str(tmp_path), "", None):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", executable)
            with warmup._second_process(settings) as process:
                assert process is None
    (tmp_path / "snm.py").write_text("raise AssertionError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with warmup._second_process(settings) as process:
        assert process is not None
        assert process.wait() == 1
    warmup.compile_training(settings)
    assert warmup.is_ready(settings)


def test_one_core_and_other_models_have_no_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, settings in ((1, Settings(threads=2)), (2, Settings(threads=1)), (2, Settings(model="kn", threads=2))):
        monkeypatch.setattr(warmup, "default_threads", lambda cores=cores: cores)
        with warmup._second_process(settings) as process:
            assert process is None


def test_settings_are_ready_when_their_last_kernels_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "is_cached", lambda kernel: kernel is not write_pages)
    assert not warmup.is_ready(Settings())
    assert warmup.is_ready(Settings(model="kn"))
    assert warmup.is_ready(Settings(model="rnn")), "a network has no kernels"
