"""The model folder: written completely or not at all, checked when opened; the error of each fault."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import snm
from snm import storage
from snm.errors import FormatError, SettingsError
from snm.evaluation import verify
from snm.kernels import matrix as matrix_kernels
from snm.kernels import matrix_writing as matrix_writing_kernels
from snm.layouts.matrix import LINE, Spread
from snm.pipeline import train
from snm.settings import Settings
from snm.storage import MANIFEST, ArrayWriter, ModelWriter, open_array, sealed
from tests.conftest import entry_of


@pytest.fixture
def copy(model_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_path, tmp_path / "copy"))


def test_the_folder_is_plain_arrays(model_path: Path) -> None:
    """NumPy and JSON alone can read it, as docs/format.md says."""
    manifest = json.loads((model_path / MANIFEST).read_text())
    arrays = {p.stem: np.load(p) for p in model_path.glob("*.npy")}
    words = (model_path / "vocabulary.txt").read_text().split("\n")[:-1]
    assert {name: a.dtype.str for name, a in arrays.items()} == {
        "starts": "<u4", "data": "|u1", "long_links": "<u4", "singles": "|u1", "values": "<f4",
        "unigrams": "<f4",
    }  # fmt: skip
    assert len(words) == manifest["vocabulary"]["words"] == len(arrays["unigrams"])
    links = [row for page in range(len(arrays["starts"]) - 1) for row in links_of_page(arrays, page)]
    assert len(links) == manifest["rows"] - 1, "the empty feature's row aside"
    assert sum(links) + np.count_nonzero(arrays["unigrams"]) == manifest["links"]
    for name, entry in manifest["files"].items():
        assert hashlib.sha256((model_path / name).read_bytes()).hexdigest() == entry["sha256"]


def links_of_page(arrays: dict[str, np.ndarray], page: int) -> list[int]:
    """Number of links of each row of a page, as docs/format.md says."""
    data = arrays["data"].tobytes()
    at, end = (int(arrays["starts"][page + i]) for i in (0, 1))
    if at == end:
        return []
    rows = data[at]
    entries = at + 1 + 3 * rows
    found = []
    for i in range(rows):
        entry = int.from_bytes(data[entries + 2 * i : entries + 2 * i + 2], "little")
        if entry < 0x8000:
            found.append(1)
            continue
        record = entries + 2 * rows + entry - 0x8000
        flags = data[record + 1]
        found.append(int.from_bytes(data[record + 2 : record + 6], "little") if flags & 0x80 else flags & 0x3F)
    return found


def test_an_array_is_written_in_blocks(tmp_path: Path) -> None:
    writer = ArrayWriter(tmp_path / "a.npy", "<u4")
    for block in ([1, 2], [], [3]):
        writer.append(np.array(block, np.uint32))
    writer.close()
    assert open_array(tmp_path / "a.npy").tolist() == [1, 2, 3]


def refused(path: Path, *what: str) -> None:
    with pytest.raises(FormatError) as caught:
        snm.load(path)
    for part in what:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_model(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no such model")
    refused(tmp_path, "is not a model", MANIFEST)


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("hello")
    refused(path, "is neither a model nor an ARPA file")


def test_a_damaged_manifest(copy: Path) -> None:
    (copy / MANIFEST).write_text("{")
    refused(copy, "is damaged")


def test_another_version(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_bytes(sealed({**manifest, "version": 99}))
    refused(copy, "version 99", "reads snm-model version 3", "a newer snm wrote it: upgrade snm")


def test_a_model_that_requires_what_is_not_known(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_bytes(sealed({**manifest, "requires": ["colours"]}))
    refused(copy, "requires 'colours'", "does not know", "newer snm")


def test_another_kind(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    (copy / MANIFEST).write_bytes(sealed({**manifest, "kind": "oracle"}))
    refused(copy, "kind 'oracle'")


def test_a_missing_or_truncated_array(copy: Path) -> None:
    path = copy / "data.npy"
    path.write_bytes(path.read_bytes()[:-4])
    refused(copy, "data.npy", "expected", "bytes")
    path.unlink()
    refused(copy, "data.npy is missing")


@pytest.mark.parametrize("name", ["data.npy", "unigrams.npy", "vocabulary.txt"])
@pytest.mark.parametrize("flip", [0x01, 0x80])
def test_a_flipped_bit_is_found_by_verify(copy: Path, name: str, flip: int) -> None:
    data = bytearray((copy / name).read_bytes())
    data[-5] ^= flip
    (copy / name).write_bytes(data)
    with pytest.raises(FormatError, match=f"{name}: its checksum differs"):
        verify(copy, contexts=5)


def change(copy: Path, name: str, work: Callable[[np.ndarray], None]) -> None:
    """Change an array and its checksum, as a faulty writer would."""
    path = copy / f"{name}.npy"
    array = np.load(path)
    work(array)
    np.save(path, array)
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["files"][path.name] = {
        "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }  # fmt: skip
    (copy / MANIFEST).write_bytes(sealed(manifest))


@pytest.mark.parametrize(
    ("name", "work", "what"),
    [
        ("starts", lambda s: s.__setitem__(1, s[-1]), "starts are not in order"),
        ("starts", lambda s: s.__setitem__(slice(1, None), s[1:] - 1), "page 0"),
        ("data", lambda d: d.__setitem__(0, 0), "page 0"),
        ("data", lambda d: d.__setitem__(slice(1, None), 255), "page"),
        ("values", lambda w: w.__setitem__(0, 0), "not above zero"),
        ("unigrams", lambda u: u.__setitem__(1, np.nan), "row is damaged"),
    ],
)
def test_a_faulty_structure_is_found_by_verify(
    copy: Path, name: str, work: Callable[[np.ndarray], None], what: str
) -> None:
    change(copy, name, work)
    with pytest.raises(FormatError, match=what):
        verify(copy, contexts=5)


@pytest.mark.parametrize(
    "work",
    [
        lambda s: s.__setitem__(slice(None), np.roll(s, LINE)),
        lambda s: s.__setitem__(slice(None), np.sort(s.reshape(-1, LINE)).ravel()),  # the end of a line tells most
        lambda s: s.__setitem__(np.flatnonzero(s)[0], 0),
    ],
    ids=["moved", "crowded", "lost"],
)
def test_a_faulty_long_row_is_found_by_verify(tmp_path: Path, work: Callable[[np.ndarray], None]) -> None:
    lines = [f"after w{n} come w{n * n % 101} and w{n * 7 % 101}" for n in range(101)]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    train(tmp_path / "text", tmp_path / "m", Settings(features="ngram(0..1)", threads=1, min_count=1))
    verify(tmp_path / "m", contexts=5)
    change(tmp_path / "m", "long_links", work)
    with pytest.raises(FormatError, match="page"):
        verify(tmp_path / "m", contexts=5)


def test_an_incomplete_manifest(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    for missing in ("layout", "features", "pages"):
        (copy / MANIFEST).write_bytes(sealed({k: v for k, v in manifest.items() if k != missing}))
        refused(copy, "is damaged", missing)
    (copy / MANIFEST).write_bytes(sealed({**manifest, "files": {"data.npy": {}}}))
    refused(copy, "is damaged")


def test_an_existing_output_is_refused(corpus_file: Path, copy: Path) -> None:
    before = (copy / MANIFEST).read_bytes()
    with pytest.raises(SettingsError, match="exists already"):
        train([corpus_file], copy, Settings(threads=1))
    assert (copy / MANIFEST).read_bytes() == before


def test_force_overwrites_a_model(corpus_file: Path, copy: Path) -> None:
    before = snm.load(copy).manifest["links"]
    model = train([corpus_file], copy, Settings(features="ngram(0..1)", threads=1), force=True)
    assert model.manifest["links"] < before
    assert sorted(p.name for p in copy.parent.iterdir()) == ["copy"], "nothing is left beside it"


def test_an_empty_folder_is_used(corpus_file: Path, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    train(corpus_file, tmp_path / "m", Settings(features="ngram(0)", threads=1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_other_folders_are_never_overwritten(corpus_file: Path, tmp_path: Path) -> None:
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter1").write_text("words")
    with pytest.raises(SettingsError, match="is not a model"):
        train([corpus_file], precious, Settings(threads=1), force=True)
    assert (precious / "chapter1").read_text() == "words"


def test_a_failed_run_leaves_no_files(corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("snm.pipeline.adjust", fail)
    with pytest.raises(KeyboardInterrupt):
        train([corpus_file], tmp_path / "m", Settings(threads=1))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_overwrite_keeps_the_old_model(corpus_file: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (copy / MANIFEST).read_bytes()
    monkeypatch.setattr("snm.storage.file_sha256", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train([corpus_file], copy, Settings(threads=1), force=True)
    assert (copy / MANIFEST).read_bytes() == before
    assert sorted(p.name for p in copy.parent.iterdir()) == ["copy"]


def test_an_output_that_cannot_be_written(corpus_file: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(SettingsError, match="cannot write"), ModelWriter(blocked / "m"):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows makes symbolic links for administrators alone")
def test_a_symbolic_link_is_followed(corpus_file: Path, copy: Path) -> None:
    link = copy.parent / "link"
    link.symlink_to(copy)
    train(corpus_file, link, Settings(features="ngram(0)", threads=1), force=True)
    assert link.is_symlink()
    assert snm.load(copy).manifest["features"] == "ngram(0)"
    assert sorted(p.name for p in copy.parent.iterdir()) == ["copy", "link"]


def test_a_failed_rename_loses_neither_model(corpus_file: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (copy / MANIFEST).read_bytes()
    rename = os.rename

    def fail_once(source: Path, target: Path) -> None:
        if Path(target) == copy and (Path(source) / MANIFEST).read_bytes() != before:
            raise OSError(39, "Directory not empty")
        rename(source, target)

    monkeypatch.setattr("snm.system.exchange", lambda a, b: False)  # as where the system cannot
    monkeypatch.setattr("os.rename", fail_once)
    with pytest.raises(SettingsError, match="the model is in") as caught:
        train(corpus_file, copy, Settings(features="ngram(0)", threads=1), force=True)
    assert (copy / MANIFEST).read_bytes() == before
    assert snm.load(str(caught.value).rpartition(" ")[2]).manifest["features"] == "ngram(0)"


@pytest.mark.parametrize("code_bytes", [1, 2])
@pytest.mark.parametrize("n", [33, 48, 100, 1000])
@pytest.mark.parametrize("crowded", ["nowhere", "at the beginning", "at the end"])
def test_every_link_of_a_long_row_is_found(crowded: str, n: int, code_bytes: int) -> None:
    find_link, position_of_link = entry_of(matrix_kernels.find_link), entry_of(matrix_kernels.position_of_link)
    words, before = 1 << 13, 2 * LINE
    spread, random = Spread.over(words, code_bytes), np.random.default_rng(n)
    spread_targets = {
        "nowhere": random.choice(np.arange(1, words), n, replace=False),
        "at the beginning": np.arange(1, n + 1),
        "at the end": np.arange(words - n, words),
    }[crowded].astype(np.uint64)
    targets = (spread_targets * spread.inverse & spread.mask).astype(np.uint32)
    codes = random.integers(0, 1 << int(spread.code_bits), n).astype(np.uint32)
    links = np.zeros(4 * LINE + 3 * n, spread.link_type)
    others = np.iinfo(links.dtype).max  # rows on both sides
    links[:before] = others
    positions = entry_of(matrix_writing_kernels.write_long_row)(0, n, targets, codes, spread, before, links)
    assert positions == entry_of(matrix_writing_kernels.measure_long_row)(0, n, targets, spread)
    assert positions % LINE == 0
    links[before + positions :] = others
    assert np.count_nonzero(links[before : before + positions]) == n
    assert positions <= (1.4 * n + LINE if crowded == "nowhere" else 2.5 * n)
    for wanted, code in zip(spread_targets.tolist(), codes.tolist(), strict=True):
        at = before + position_of_link(wanted, n, spread)
        assert find_link(wanted, at, links, spread) == code
    for missing in np.setdiff1d(np.arange(1, words), spread_targets)[::50].tolist():
        at = before + position_of_link(missing, n, spread)
        assert find_link(missing, at, links, spread) == -1


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_arrays_are_prefaulted_if_memory_suffices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.arange(10_000))
    array = storage.open_array(tmp_path / "a.npy")
    asked: list[int] = []

    class Mapping:
        def __len__(self) -> int:
            return array.nbytes

        def madvise(self, advice: int) -> None:
            asked.append(advice)
            raise OSError("an old Linux kernel")

    storage.prefault([array, np.arange(3)])
    assert np.array_equal(array, np.arange(10_000))
    monkeypatch.setattr(storage, "_mapping_of", lambda array: Mapping())
    storage.prefault([array, array])
    assert len(asked) == 2
    monkeypatch.setattr(os, "sysconf", lambda name: 2 * array.nbytes // mmap.PAGESIZE)
    storage.prefault([array, array])
    assert len(asked) == 2, "arrays larger than the memory are not prefaulted"
