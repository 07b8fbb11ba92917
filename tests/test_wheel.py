"""The wheel: a user's script is moved to SNM by changing one line of it.

The wheel is built from the checkout, and its files are a folder of their own: nothing else of the checkout is seen.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import snm

ROOT = Path(__file__).parents[1]
SCRIPT = """\
import kenlm
import sys

model, sentence = kenlm.Model(sys.argv[1]), "the old man sees a unicorn"
print(model.order, "unicorn" in model, "man" in model, round(model.score(sentence, bos=True, eos=True), 4))
for (p, length, oov), word in zip(model.full_scores(sentence), sentence.split() + ["</s>"]):
    print(f"{p:.4f} {length} {oov} {word}")
state, out, total = kenlm.State(), kenlm.State(), 0.0
model.BeginSentenceWrite(state)
for word in sentence.split():
    total += model.BaseScore(state, word, out)
    state, out = out, state
print(round(total, 4), round(model.perplexity("a dog eats cake"), 3))
"""
FILTER = """\
import kenlm
import json
import sys

model = kenlm.Model(sys.argv[1])
for line in open(sys.argv[2], encoding="utf-8"):
    text = json.loads(line)["text"]
    words = sum(len(part.split()) + 1 for part in text.split("\\n"))
    if 10 ** (-sum(map(model.score, text.split("\\n"))) / words) < 40:
        print(line, end="")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the wheel, and the compiled kernels of the checkout."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs the package setuptools, to build the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "snm", source / "snm", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "."]
    made = subprocess.run([*build, str(source)], cwd=folder, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"pip cannot build the wheel here: {made.stderr.strip().splitlines()[-1:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "site")
    for path in (folder / "site" / "snm").rglob("*.py"):
        shutil.copystat(ROOT / path.relative_to(folder / "site"), path)
    for path in (ROOT / "snm").rglob("*.nb[ic]"):
        target = folder / "site" / path.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copy2(path, target)
    return folder / "site"


def run(installed: Path, script: str, *arguments: object) -> str:
    """What a script prints, with the files of the wheel."""
    starter = f"import sys; sys.path.insert(0, {str(installed)!r})\n"
    command = [sys.executable, "-P", "-c", starter + script, *map(str, arguments)]
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=installed)
    assert made.returncode == 0, made.stderr
    return made.stdout


def moved(script: str) -> str:
    """The script, with one line changed."""
    lines = script.split("\n")
    lines[lines.index("import kenlm")] = "import snm.kenlm as kenlm"
    return "\n".join(lines)


@pytest.fixture(scope="module")
def arpa(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arpa")
    snm.export_arpa(snm.train(corpus_file, folder / "m", snm.Settings(model="kn", order=3)), folder / "text.arpa")
    return folder / "text.arpa"


def test_the_wheel_has_all_modules_and_no_tests(installed: Path) -> None:
    found = {path.relative_to(installed).as_posix() for path in installed.rglob("*.py")}
    assert found == {path.relative_to(ROOT).as_posix() for path in (ROOT / "snm").rglob("*.py")}
    assert (installed / "snm" / "py.typed").exists()
    assert run(installed, "import snm; print(snm.__file__)").strip() == str(installed / "snm" / "__init__.py")


@pytest.mark.parametrize("script", [SCRIPT, FILTER], ids=["scoring", "filtering"])
def test_a_script_of_kenlm_prints_the_same_with_one_line_changed(
    installed: Path, arpa: Path, tmp_path: Path, script: str
) -> None:
    documents = tmp_path / "documents.jsonl"
    documents.write_text('{"text": "the cat sees fish\\\\na dog likes cake"}\n{"text": "qq fish sees zz the"}\n')
    found = run(installed, moved(script), arpa, documents)
    assert found.count("\n") == (9 if script is SCRIPT else 1)
    pytest.importorskip("kenlm", reason="needs the package kenlm")
    assert found == run(installed, script, arpa, documents)


def test_the_same_script_takes_a_model_of_snm(installed: Path, model_path: Path) -> None:
    assert "unicorn" in run(installed, moved(SCRIPT), model_path)
