"""The tutorial of decoding runs as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.test_cli import ok

PAGE = Path(__file__).parents[1] / "docs" / "decoding-tutorial.md"


def test_the_tutorial_of_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "tutorial"}
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        if language == "python":
            exec(compile(code, str(PAGE), "exec"), names)
        else:
            assert language == "sh"
            for line in code.strip().split("\n"):
                command, *arguments = shlex.split(line)
                if command == "snm":
                    ok(*arguments)
    assert (tmp_path / "best.txt").read_text().startswith("test0 ")
