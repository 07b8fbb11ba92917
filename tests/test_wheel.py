"""The wheel: in an empty environment three lines make a model, and a script of kenlm's changes one line.

The source archive is built from the checkout, and the wheel from the archive. Its files are in a folder of their own:
nothing else of the checkout is seen.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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
DECODE = """\
from pyctcdecode import build_ctcdecoder
import numpy as np
import sys

labels = ["", " ", *"abcdefghijklmnopqrstuvwxyz"]
known = ["the", "a", "cat", "dog", "sees", "likes", "fish", "cake"]
decoder = build_ctcdecoder(labels, sys.argv[1], known, alpha=0.5, beta=1.0)
for seed, text in enumerate(["the cat sees fish", "a dog likes cake"]):
    random, frames = np.random.default_rng(seed), []
    for letter in text:
        for label in (letter, letter, ""):
            frames.append(random.normal(0.0, 1.0, len(labels)) + 6.0 * np.eye(len(labels))[labels.index(label)])
    beams = decoder.decode_beams(np.array(frames), beam_width=20, hotwords=["cat"], hotword_weight=2.0)
    print(decoder.decode(np.array(frames)), beams[0][0], beams[0][2], f"{beams[0][-1]:.3f}")
"""
PYCTCDECODE = Path(os.environ.get("SNM_PYCTCDECODE", ROOT / ".venv-pyctcdecode" / "bin" / "python"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive of the checkout."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs the package setuptools, to build the wheel")
    folder = tmp_path_factory.mktemp("archive")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("snm", "tests", "docs", "benchmarks", "conda", "requirements"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, folder)
    build = "import setuptools.build_meta as b; b.build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, check=True)
    (made,) = (folder / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip builds from the source archive, as for a release."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    made = subprocess.run([*build, "-w", ".", str(archive)], cwd=folder, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"pip cannot build the wheel here: {made.stderr.strip().splitlines()[-1:]}")
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder with the files of the wheel, and the compiled kernels of the checkout."""
    site = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    take_kernels(site)
    return site


def take_kernels(site: Path) -> None:
    """Give installed modules the times of those of the checkout, so that its compiled kernels are valid, and these."""
    for path in (site / "snm").rglob("*.py"):
        shutil.copystat(ROOT / path.relative_to(site), path)
    for path in (ROOT / "snm").rglob("*.nb[ic]"):
        target = site / path.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copy2(path, target)


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
    changed = {
        "import kenlm": "import snm.kenlm as kenlm",
        "from pyctcdecode import build_ctcdecoder": "from snm.decoding import build_ctcdecoder",
    }
    (at,) = [i for i, line in enumerate(lines) if line in changed]
    lines[at] = changed[lines[at]]
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


def test_the_wheel_is_pure(wheel: Path) -> None:
    assert wheel.name == f"snm-{snm.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        folders = {name.partition("/")[0] for name in file.namelist()}
        (license,) = [name for name in file.namelist() if name.endswith("/LICENSE")]
    assert folders == {"snm", f"snm-{snm.__version__}.dist-info"}
    assert license.startswith(f"snm-{snm.__version__}.dist-info/")


def test_the_archive_is_the_checkout(archive: Path) -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a checkout of git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {name for name in listed.stdout.split("\0") if name and not name.startswith(".")}
    with tarfile.open(archive) as file:
        found = {member.name.partition("/")[2] for member in file.getmembers() if member.isfile()}
    assert tracked - found == set()
    generated = {name for name in found - tracked if not name.startswith("snm.egg-info/")}
    assert {name for name in generated if (ROOT / name).exists()} <= set(untracked())
    assert generated - set(untracked()) == {"PKG-INFO", "setup.cfg"}


def untracked() -> list[str]:
    """Files that are not committed yet."""
    command = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")


def dependencies(name: str) -> dict[str, metadata.Distribution]:
    """The installed packages that one needs, without extras, however indirectly."""
    found: dict[str, metadata.Distribution] = {}
    left = list(metadata.requires(name) or [])
    while left:
        needed = Requirement(left.pop())
        if (needed.marker is None or needed.marker.evaluate({"extra": ""})) and needed.name not in found:
            found[needed.name] = metadata.distribution(needed.name)
            left += metadata.requires(needed.name) or []
    return found


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which pip has installed the wheel: it and what it needs, and nothing else.

    Nothing is downloaded: the packages that it needs are linked from the environment of the tests.
    """
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    for package in dependencies("snm").values():
        for part in {file.parts[0] for file in package.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            link(Path(str(package.locate_file(part))), site / part)
    install = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-index", str(wheel)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    made = subprocess.run(install, capture_output=True, text=True, check=False, env=clean)
    assert made.returncode == 0, made.stderr
    take_kernels(site)
    return python


def link(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source)
    except OSError:  # Windows wants a privilege
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)


def test_the_first_model_takes_three_lines_in_an_empty_environment(
    empty: Path, corpus_file: Path, tmp_path: Path
) -> None:
    """The three lines are those of the README."""
    block = (ROOT / "README.md").read_text().split("three lines")[1].split("```python\n")[1].split("```")[0]
    assert len([line for line in block.splitlines() if line]) == 3
    shutil.copy(corpus_file, tmp_path / "train.txt")
    command = [str(empty), "-I", "-W", "error", "-c", block]
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    (first, p), *_ = eval(made.stdout)
    assert first in ("cat", "dog", "old")
    assert p == pytest.approx(snm.load(tmp_path / "my.model").next_words("the", k=3)[0][1])
    names = "from importlib.metadata import distributions as d; print(*sorted(x.name for x in d()))"
    listed = subprocess.run(
        [str(empty), "-I", "-c", names],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert set(listed) == {"snm", *(package.name for package in dependencies("snm").values())}
    version = subprocess.run([str(empty.with_name("snm")), "--version"], capture_output=True, text=True, check=True)
    assert snm.__version__ in version.stdout


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


def test_a_script_of_pyctcdecode_prints_the_same_with_one_line_changed(
    installed: Path, arpa: Path, tmp_path: Path
) -> None:
    found = run(installed, moved(DECODE), arpa)
    assert [line.split(" [")[0] for line in found.split("\n")] == [
        "the cat sees fish the cat sees fish", "a dog likes cake a dog likes cake", "",
    ]  # fmt: skip
    if not PYCTCDECODE.exists():
        pytest.skip(f"needs pyctcdecode and kenlm in {PYCTCDECODE.parent.parent} (make test installs them)")
    theirs = [str(PYCTCDECODE), "-I", "-c", DECODE, str(arpa)]
    assert subprocess.run(theirs, capture_output=True, text=True, check=True, cwd=tmp_path).stdout == found


def test_the_same_script_takes_a_model_of_snm(installed: Path, model_path: Path) -> None:
    assert "unicorn" in run(installed, moved(SCRIPT), model_path)
