"""Terminals, pipes and files: narrow ones, other encodings, closed and full ones; messages are one line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from snm.cli import bars
from snm.cli.terminal import MAX_MESSAGE, Interrupts, one_line
from snm.errors import FormatError
from snm.storage import MANIFEST, read_manifest
from tests.test_cli import fails, run

GOLDEN = Path(__file__).parent / "golden" / "format3"
needs_unix = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix")


def snm(*arguments: object, shell: str = '"$@"', **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a shell, whose `"$@"` it is."""
    command = ["sh", "-c", shell, "sh", sys.executable, "-m", "snm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment}, check=False)


def in_terminal(command: list[str], columns: int, **environment: str) -> bytes:
    """What a command prints on a terminal."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **environment}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    printed = []
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the end, on Linux
            break
        if not data:
            break
        printed.append(data)
    os.close(ours)
    assert process.wait() == 0, b"".join(printed)
    return b"".join(printed)


BARS = """
from snm.cli.bars import Bars
bars = Bars()
with bars("reading", 0) as advance:
    for _ in range(20):
        advance(10**9)
bars.expect(["reading", "word classes", "counting"])
with bars("word classes", 1000) as advance:
    for _ in range(20):
        advance(50)
"""


@needs_unix
class TestBars:
    @pytest.mark.parametrize("columns", [200, 76, 60, 45, 30, 20, 12, 4, 1])
    def test_a_bar_fits_into_the_terminal(self, columns: int) -> None:
        printed = in_terminal([sys.executable, "-c", BARS], columns, COLUMNS="500").decode()
        lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", printed))
        assert max(map(len, lines)) < columns or columns == 1
        assert ("100%" in printed) == (columns > 4)
        assert ("2/3 word classes" in printed) == (columns > 30)
        assert ("20.0GB" in printed) == (columns > 8)

    def test_rate_and_time_left(self) -> None:
        printed = in_terminal([sys.executable, "-c", BARS], 80).decode()
        assert re.search(r"2/3 word classes: 100%\|█+\| 1\.00k/1\.00k \[00:00<00:00, .*/s\]", printed)

    def test_a_dumb_terminal_has_none(self) -> None:
        assert in_terminal([sys.executable, "-c", BARS], 80, TERM="dumb") == b""


class TestLines:
    def test_every_stage_says_how_far_it_is(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bars, "INTERVAL", 0.0)
        progress = bars.Bars(as_json=True)
        with progress("reading", 0) as advance:
            advance(7)
        progress.expect(["reading", "sizing", "training", "sizing"])
        for label in ("sizing", "counting 1/2", "training", "sizing"):
            with progress(label, 100) as advance:
                advance(25)
        captured = capsys.readouterr()
        lines = [json.loads(line) for line in captured.err.splitlines()]
        assert captured.out == ""
        assert [(line["stage"], line["number"], line["of"]) for line in lines if not line["done"]] == [
            ("reading", None, None), ("sizing", 2, 4), ("counting 1/2", 2, 4), ("training", 3, 4), ("sizing", 4, 4),
        ]  # fmt: skip
        assert [line["done"] for line in lines if line["stage"] == "training"] == [0, 25, 100]
        quarter = next(line for line in lines if line["done"] == 25)
        assert quarter["seconds_left"] == pytest.approx(75 / quarter["per_second"])
        assert lines[1] == {**lines[1], "total": None, "done": 7, "seconds_left": None}

    def test_a_training(self, model_path: Path, corpus_file: Path, tmp_path: Path) -> None:
        done = run("train", corpus_file, "-o", tmp_path / "m", "--features", "ngram(0..2)", "--json")
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        stages = {line["stage"]: (line["number"], line["of"]) for line in lines if "stage" in line}
        assert stages["training"] == (3, 4)
        assert stages["building"] == (4, 4)
        assert any("sentences" in line.get("message", "") for line in lines)
        assert json.loads(done.stdout)["peak_bytes"] > 0

    def test_quiet(self, corpus_file: Path, tmp_path: Path) -> None:
        assert run("train", corpus_file, "-o", tmp_path / "m", "--model", "kn", "--quiet").stderr == ""


@needs_unix
class TestEncodings:
    @pytest.fixture
    def text(self, tmp_path: Path) -> Path:
        (tmp_path / "text.txt").write_text("the old → 你好\n", encoding="utf-8")
        return tmp_path / "text.txt"

    @pytest.mark.parametrize(
        "environment",
        [{"PYTHONIOENCODING": "cp1252"}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}],
    )
    def test_files_and_pipes_are_utf8(self, environment: dict[str, str], text: Path) -> None:
        done = snm("score", GOLDEN / "snm", text, "--tokens", PYTHONUTF8="0", **environment)
        assert done.returncode == 0, done.stderr
        assert "你好 -2" in done.stdout.decode()
        assert "no→model: no such model" in snm("ppl", "no→model", PYTHONUTF8="0", **environment).stderr.decode()

    def test_a_terminal_shows_a_replacement(self, text: Path) -> None:
        command = [sys.executable, "-m", "snm", "score", str(GOLDEN / "snm"), str(text), "--tokens"]
        printed = in_terminal(command, 200, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
        assert b"?? -2" in printed
        assert b"Traceback" not in printed

    def test_names_that_are_not_utf8(self, tmp_path: Path) -> None:
        model = tmp_path / os.fsdecode(b"m\xff\n")
        try:
            shutil.copytree(GOLDEN / "backoff", model)
        except OSError:
            pytest.skip("the disk does not take such names")
        assert snm("ppl", model, GOLDEN.parent / "text.txt").returncode == 0
        done = snm("train", "none", "-o", model)
        assert rb"m\xff\n exists already; choose another name" in done.stderr


@needs_unix
class TestClosed:
    def test_closed_standard_output_and_error(self, tmp_path: Path) -> None:
        text = GOLDEN.parent / "text.txt"
        assert snm("score", GOLDEN / "snm", text, shell='"$@" >&-').returncode == 0
        assert snm("ppl", tmp_path / "none", shell='"$@" 2>&-').returncode == 2
        done = snm("train", text, "-o", tmp_path / "m", "--model", "kn", shell='"$@" <&- >&- 2>&-')
        assert done.returncode == 0
        assert (tmp_path / "m" / MANIFEST).exists()

    def test_closed_standard_input(self) -> None:
        done = snm("score", GOLDEN / "snm", shell='"$@" <&-')
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"snm: standard input is closed; ")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    @pytest.mark.parametrize("arguments", [("next", GOLDEN / "snm"), ("next", GOLDEN / "snm", "--json"), ("--help",)])
    def test_a_full_disk(self, arguments: tuple[object, ...]) -> None:
        done = snm(*arguments, shell='"$@" >/dev/full')
        assert done.returncode == 1
        assert done.stderr == b"snm: No space left on device; free some, or write to another disk\n"


class TestMessages:
    def test_one_line(self) -> None:
        assert one_line("a\nb\x1b[31m\ud800 → é") == "a\\nb\\x1b[31m\\ud800 → é"
        assert len(one_line("word " * 1_000_000)) < MAX_MESSAGE + 10
        assert len(one_line("begin " + "x" * 5_000_000 + " end")) < 700
        assert one_line("x" * 400) == "x" * 400

    @pytest.mark.parametrize(
        "arguments",
        [("{}",), ("--{}",), ("train", "--{}"), ("train", "t", "-o", "m", "--threads", "{}"), ("ppl", "{}"),
         ("train", "t", "-o", "m", "--preset", "{}"), ("train", "t", "-o", "m", "--features", "{}"),
         ("train", "t", "-o", "m", "--memory", "{}"), ("train", "t", "-o", "m", "--metafeatures", "{}"),
         ("train", "t", "-o", "m", "--import", "{}"), ("mix", "a", "{}", "--dev", "t"), ("info", "{}")],
    )  # fmt: skip
    def test_what_was_given_is_not_repeated_at_length(self, arguments: tuple[str, ...]) -> None:
        done = run(*(argument.format("y" * 1_000_000) for argument in arguments))
        assert done.exit_code == 2
        assert len(done.stderr) < 1500

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            (("train", "t", "-o", "-"), "cannot be written to standard output"),
            (("train", "t", "-o", ""), "the name is empty"),
            (("train", "t", "-o", "m", "--vocab", ""), "the name is empty"),
            (("reproduce", "table1", "--corpus", "", "-o", "w"), "the name is empty"),
            (("reproduce", "table1", "--corpus", "c", "-o", ""), "the name is empty"),
            (("demo", "-o", ""), "the name is empty"),
        ],
    )
    def test_names_that_make_no_sense(
        self, arguments: tuple[str, ...], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("t").write_text("some words\n")
        assert what in fails(*arguments)
        assert os.listdir() == ["t"]

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root can read everything")
    @pytest.mark.parametrize("name", [MANIFEST, "vocabulary.txt", "data.npy"])
    def test_files_that_cannot_be_read_are_not_called_damaged(self, name: str, tmp_path: Path) -> None:
        shutil.copytree(GOLDEN / "snm", tmp_path / "m")
        (tmp_path / "m" / name).chmod(0)
        assert f"cannot read {tmp_path / 'm' / name}: Permission denied" in fails("ppl", tmp_path / "m")

    def test_an_unreadable_manifest(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*arguments: object, **more: object) -> str:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("builtins.open", refuse)
        with pytest.raises(FormatError, match=r"cannot read .*manifest\.json: Permission denied$"):
            read_manifest(GOLDEN / "snm")


@needs_unix
class TestInterrupts:
    def test_an_interrupt_that_became_another_error(self) -> None:
        """Numba raises a SystemError if a signal comes while it returns from a kernel."""

        def work() -> None:
            with Interrupts():
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                except KeyboardInterrupt:
                    raise SystemError("returned a result with an exception set") from None

        with pytest.raises(KeyboardInterrupt):
            work()

    def test_an_interrupt_before_a_command_begins(self) -> None:
        code = (
            "import sys\n"
            "class Interrupt:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'click': raise KeyboardInterrupt\n"
            "sys.meta_path.insert(0, Interrupt())\n"
            "from snm.cli import main; main()\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "snm: interrupted\n")
