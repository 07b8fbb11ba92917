"""ARPA files whose tokens are named as NeMo names them."""

from __future__ import annotations

from pathlib import Path

import pytest

import snm
from snm.settings import Settings
from tests.conftest import train
from tests.test_cli import fails, ok

TOKENS = ["▁the", "▁a", "▁cat", "s", "▁dog", "▁sees"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nemo")
    text = "\n".join(["▁the ▁cat s", "▁a ▁dog ▁sees ▁the ▁cat", "▁the ▁dog s"] * 20)
    (folder / "text.txt").write_text(text + "\n")
    (folder / "labels.txt").write_text("\n".join(TOKENS) + "\n")
    train([folder / "text.txt"], folder / "kn.model", Settings(model="kn", order=3, threads=1))
    return folder / "kn.model"


def test_tokens_are_characters(model: Path, tmp_path: Path) -> None:
    ok("export", str(model), str(tmp_path / "nemo.arpa"), "--nemo", str(model.parent / "labels.txt"))
    named = snm.load(tmp_path / "nemo.arpa")
    assert set(named.vocabulary.words[3:]) == {chr(100 + i) for i in range(len(TOKENS))}
    original = snm.load(model)
    for line in ("▁the ▁cat s", "▁a ▁dog s", "▁dog"):
        renamed = " ".join(chr(100 + TOKENS.index(token)) for token in line.split())
        assert named.score(renamed) == pytest.approx(original.score(line), abs=1e-4)
    kenlm = pytest.importorskip("kenlm")
    theirs = kenlm.Model(str(tmp_path / "nemo.arpa"))
    assert theirs.score("d f") == pytest.approx(original.score("▁the ▁cat"), abs=1e-4)


def test_errors(model: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("▁the\n▁a\n")
    message = fails("export", str(model), str(tmp_path / "a.arpa"), "--nemo", str(tmp_path / "labels.txt"))
    assert "is no label" in message
    assert not (tmp_path / "a.arpa").exists()
    fails("export", str(model), str(tmp_path / "a.arpa"), "--nemo", str(tmp_path / "nowhere.txt"))
    (tmp_path / "labels.txt").write_text("\n" * 60_000)
    assert "has more than 55,196 lines" in fails(
        "export", str(model), str(tmp_path / "a.arpa"), "--nemo", str(tmp_path / "labels.txt")
    )
