"""The cache of compiled kernels: it notices a change in any kernel or layout file, and is used otherwise."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher

import snm.kernels
from snm.kernels import compile as compiling

PACKAGE = Path(snm.kernels.__file__).parents[1]
SCRIPT = """
import numpy as np
from snm.kernels.features import context_keys
keys = np.empty(2, np.uint64)
context_keys(np.array([[3, 4], [5, 6]], np.uint32), np.uint64(7), np.uint64(2**64 - 256), np.uint64(1), keys)
print(keys.tolist(), sum(context_keys.stats.cache_hits.values()), sum(context_keys.stats.cache_misses.values()))
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "snm", ignore=shutil.ignore_patterns("__pycache__", "*.nb?"))
    return tmp_path


def run(folder: Path) -> tuple[str, int, int]:
    """Keys that a kernel of the copied package computes, and how often its code came from the cache or did not."""
    settings = {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=folder,
        env=os.environ | settings,
        check=True,
        capture_output=True,
        text=True,
    )
    keys, hits, misses = done.stdout.rsplit(maxsplit=2)
    return keys, int(hits), int(misses)


def edit(path: Path, old: str, new: str) -> None:
    source = path.read_text()
    assert source.count(old) == 1
    path.write_text(source.replace(old, new))


def test_a_kernel_is_compiled_again_only_after_a_change_in_a_file_that_it_uses(copied: Path) -> None:
    keys, *compiled = run(copied)
    assert compiled == [0, 1]
    assert run(copied) == (keys, 1, 0)
    edit(copied / "snm" / "layouts" / "keys.py", "0xBF58476D1CE4E5B9", "0xBF58476D1CE4E5BB")  # hashing.mix64 uses it
    other, *compiled = run(copied)
    assert other != keys
    assert compiled == [0, 1]
    edit(copied / "snm" / "kernels" / "hashing.py", "return x ^ (x >> _31)", "return x ^ (x >> _30)")
    third, *compiled = run(copied)
    assert third not in (keys, other)
    assert compiled == [0, 1]


def test_every_kernel_and_layout_file_is_part_of_the_stamp(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_PACKAGE", copied / "snm")
    digest: Any = compiling._digest_of_sources
    stamps = {digest()}
    files = [*(copied / "snm" / "kernels").rglob("*.py"), *(copied / "snm" / "layouts").rglob("*.py")]
    for path in files:
        path.write_text(path.read_text() + "\n")
        stamps.add(digest())
    assert len(stamps) == 1 + len(files) > 20


def test_every_kernel_is_cached_under_the_stamp() -> None:
    found = 0
    for module in pkgutil.iter_modules(snm.kernels.__path__):
        for value in vars(importlib.import_module(f"snm.kernels.{module.name}")).values():
            if isinstance(value, Dispatcher):
                cache: Any = value._cache  # type: ignore[attr-defined]
                assert cache._cache_file._source_stamp == compiling._STAMP, value
                found += 1
    assert found > 100


def test_kernels_are_compiled_by_one_module_alone() -> None:
    """Elsewhere `njit` would cache a function under the content of its own file."""
    names = {"njit", "jit", "vectorize", "guvectorize"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "numba" and path.name != "compile.py":
                assert not names & {alias.name for alias in node.names}, path


def test_a_version_is_not_loaded_from_the_file_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes read an empty index and save two versions of a kernel at the same time, to the same file."""
    cache = SimpleNamespace(_cache_path=str(tmp_path), _impl=SimpleNamespace(filename_base="kernel"))
    made: Any = compiling._CacheFile
    one, other = made(cache), made(cache)
    save = one._save_data

    def save_later(name: str, data: Any) -> None:
        other.save("b", "code of b")
        save(name, data)

    with monkeypatch.context() as patch:
        patch.setattr(other, "_load_index", dict)
        patch.setattr(one, "_save_data", save_later)
        one.save("a", "code of a")
    assert list(one._load_index()) == ["b"]
    assert len(list(tmp_path.glob("*.nbc"))) == 1
    assert one.load("a") is one.load("b") is None
    for key in "ab":
        one.save(key, f"code of {key}")
    assert [other.load(key) for key in "ab"] == ["code of a", "code of b"]


UNWRITABLE = """
import os, sys, tempfile
import numba.core.caching as caching
real = caching._CacheLocator.ensure_cache_path

def refuse(self):
    if not self.get_cache_path().startswith(tempfile.gettempdir()):
        raise PermissionError(13, "read-only")
    real(self)

caching._CacheLocator.ensure_cache_path = refuse
from numba import config
from snm.kernels import hashing
assert config.CACHE_DIR == ""
print(hashing.mix64._cache.cache_path)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the temporary folder of Windows is the user's own")
def test_kernels_are_cached_in_a_folder_of_the_users_own_where_nothing_else_can_be_written(tmp_path: Path) -> None:
    """As for a service user without a home, with a package that root installed."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"TMPDIR": str(tmp_path), "PYTHONPATH": str(PACKAGE.parent)}

    def cache_path() -> Path:
        command = [sys.executable, "-c", UNWRITABLE]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=PACKAGE.parent)
        return Path(done.stdout.strip())

    folder = cache_path().parent
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)  # others could have put kernels there
    assert cache_path().parent != folder
