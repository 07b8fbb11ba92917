"""Damaged models, texts and results: each is refused in one line, whatever is wrong with it."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm.errors import FormatError, InputError, SnmError
from snm.reproduction.workspace import Workspace
from snm.storage import MANIFEST
from tests.test_cli import fails, ok, run

GOLDEN = Path(__file__).parent / "golden" / "format3"
KINDS = ["snm", "backoff", "hsme", "lstm", "mixture"]
WRONG: list[Any] = [None, "x", [], {}, [1], True, -1, 0, 1.5, 10**12, 10**30, float("nan"), float("inf")]


@pytest.fixture(params=KINDS)
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / "m"))


def entries(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every entry of a JSON value; of lists and of the files, the first two."""
    if isinstance(value, dict | list):
        inner = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, part in inner[:2] if isinstance(value, list) or at == ("files",) else inner:
            yield (*at, key)
            yield from entries(part, (*at, key))


def edited(manifest: Any, at: tuple[Any, ...], value: Any) -> Any:
    """A manifest with one entry replaced, or deleted if the value is Ellipsis."""
    manifest = json.loads(json.dumps(manifest))
    inner = manifest
    for key in at[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return manifest


def use(path: Path) -> None:
    model = snm.load(path)
    assert repr(model)
    assert hash(model) == hash(model)
    model.score("the old stone")
    model.next_words("the", k=2)
    model.step(model.start(), "the")


class TestManifests:
    def test_every_entry_may_be_missing_or_wrong(self, copy: Path) -> None:
        manifest = json.loads((copy / MANIFEST).read_text())
        refused: list[str] = []
        for at in entries(manifest):
            for value in (..., *WRONG):
                (copy / MANIFEST).write_text(json.dumps(edited(manifest, at, value)))
                try:
                    use(copy)
                except FormatError as error:
                    refused.append(str(error))
                except Exception as error:
                    pytest.fail(f"{'.'.join(map(str, at))} is {value}: {error!r}")
        assert len(refused) > 200
        assert max(map(len, refused)) < 500
        assert not any("\n" in message for message in refused)

    def test_info_of_every_wrong_entry(self, copy: Path) -> None:
        manifest = json.loads((copy / MANIFEST).read_text())
        for at in entries(manifest):
            for value in (..., *WRONG[:8]):
                (copy / MANIFEST).write_text(json.dumps(edited(manifest, at, value)))
                assert run("info", copy).exit_code in (0, 2), f"{at} is {value}"

    @pytest.mark.parametrize(
        "text", ["", "[]", "7", "{}", "[" * 100_000, '{"format": ', "\ufeff{}", '{"format": "' + "x" * 5_000_000 + '"}']
    )
    def test_what_is_no_manifest(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / MANIFEST).write_text(text)
        assert len(fails("ppl", tmp_path / "m")) < 600
        (tmp_path / "m" / MANIFEST).write_bytes(b"\xff\xfe")
        assert "is damaged" in fails("info", tmp_path / "m")

    def test_a_huge_value_is_not_repeated(self, tmp_path: Path) -> None:
        path = Path(shutil.copytree(GOLDEN / "snm", tmp_path / "m"))
        manifest = json.loads((path / MANIFEST).read_text())
        for at in (("features",), ("kind",), ("version",), ("layout", "type_bits"), ("vocabulary", "words")):
            (path / MANIFEST).write_text(json.dumps(edited(manifest, at, "y" * 1_000_000)))
            assert len(fails("ppl", path)) < 800

    @pytest.mark.parametrize("name", ["../out.npy", "/tmp/out.npy", "a/../../out.npy"])
    def test_a_model_has_no_files_outside_its_folder(self, name: str, tmp_path: Path) -> None:
        path = Path(shutil.copytree(GOLDEN / "snm", tmp_path / "m"))
        manifest = json.loads((path / MANIFEST).read_text())
        manifest["files"][name] = {"bytes": 0, "sha256": ""}
        (path / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(FormatError, match="expected files of its folder"):
            snm.load(path)


class TestMixtures:
    @pytest.mark.parametrize("members", [[], ["."], [".."], [""], ["../m"], ["nowhere"], ["member0", "member1", "."]])
    def test_members_that_are_not_there(self, members: list[str], tmp_path: Path) -> None:
        path = Path(shutil.copytree(GOLDEN / "mixture", tmp_path / "m"))
        manifest = json.loads((path / MANIFEST).read_text())
        weights = [1 / len(members)] * len(members) if members else []
        (path / MANIFEST).write_text(json.dumps({**manifest, "members": members, "weights": weights}))
        with pytest.raises(FormatError):
            snm.load(path)

    def test_a_link_to_itself(self, tmp_path: Path) -> None:
        path = Path(shutil.copytree(GOLDEN / "mixture", tmp_path / "m"))
        shutil.rmtree(path / "member1")
        (path / "member1").symlink_to(path, target_is_directory=True)
        manifest = json.loads((path / MANIFEST).read_text())
        files = {name: entry for name, entry in manifest["files"].items() if "member1" not in name}
        (path / MANIFEST).write_text(json.dumps({**manifest, "files": files}))
        with pytest.raises(FormatError):
            snm.load(path)

    def test_members_are_linked_without_other_files(self, tmp_path: Path) -> None:
        path = Path(shutil.copytree(GOLDEN / "snm", tmp_path / "a"))
        (path / "notes.txt").write_text("not a part of the model")
        (tmp_path / "dev.txt").write_text("the old stone\n")
        os.rename(path / "data.npy", tmp_path / "data.npy")
        (path / "data.npy").symlink_to("../data.npy")  # as in a cache of downloads
        made = snm.mix([path, GOLDEN / "backoff"], tmp_path / "dev.txt", tmp_path / "m")
        assert made.score("the old stone") < 0
        assert not (tmp_path / "m" / "member0" / "notes.txt").exists()
        assert not (tmp_path / "m" / "member0" / "data.npy").is_symlink()

    def test_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*arguments: object, **more: object) -> None:
            raise OSError(28, "No space left on device", str(arguments[1]))

        monkeypatch.setattr(os, "link", full)
        monkeypatch.setattr(shutil, "copy2", full)
        (tmp_path / "dev.txt").write_text("the old stone\n")
        done = run("mix", GOLDEN / "snm", GOLDEN / "backoff", "--dev", tmp_path / "dev.txt", "-o", tmp_path / "m")
        assert done.exit_code == 1
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("snm: No space left on device: ")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["dev.txt"]


class Payload:
    """What would make a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def header(shape: str, dtype: str = "'<f4'") -> bytes:
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def saved(array: np.ndarray, path: Path) -> bytes:
    np.save(path, array)
    data = path.read_bytes()
    path.unlink()
    return data


class TestArrays:
    @pytest.mark.parametrize("kind", ["snm", "backoff", "hsme", "lstm"])
    @pytest.mark.parametrize(
        "damage",
        [
            lambda data, array, path: b"",
            lambda data, array, path: data[:100],
            lambda data, array, path: data[:-1] if len(data) > 128 else data[:-10],
            lambda data, array, path: b"PK\x05\x06" + bytes(18),
            lambda data, array, path: pickle.dumps(Payload(path.with_name("run"))),
            lambda data, array, path: header("(3,)", "'|O'") + pickle.dumps([Payload(path.with_name("run"))] * 3),
            lambda data, array, path: header("(10000000000000000000000,)") + bytes(64),
            lambda data, array, path: header("(-1,)") + bytes(64),
            lambda data, array, path: header("(1,)", "[[[(") + bytes(64),
            lambda data, array, path: saved(array.astype(">f8"), path),
            lambda data, array, path: saved(array.astype(np.complex64), path),
            lambda data, array, path: saved(array.reshape(1, -1), path),
            lambda data, array, path: saved(np.asfortranarray(np.stack([array, array])), path),
            lambda data, array, path: saved(array[:-1] if len(array) else np.zeros((), array.dtype), path),
        ],
        ids=["empty", "header", "cut", "zip", "pickle", "objects", "huge", "negative", "syntax", "big-endian", "dtype",
             "shape", "fortran", "shorter"],
    )  # fmt: skip
    def test_each_array(self, kind: str, damage: Callable[[bytes, np.ndarray, Path], bytes], tmp_path: Path) -> None:
        path = Path(shutil.copytree(GOLDEN / kind, tmp_path / "m"))
        manifest = json.loads((path / MANIFEST).read_text())
        for file in sorted(path.glob("*.npy")):
            data = file.read_bytes()
            made = damage(data, np.load(file), tmp_path / "made.npy")
            file.write_bytes(made)
            entry = {"bytes": len(made), "sha256": hashlib.sha256(made).hexdigest()}
            (path / MANIFEST).write_text(json.dumps(edited(manifest, ("files", file.name), entry)))
            with pytest.raises(FormatError) as caught:
                use(path)
            assert len(str(caught.value)) < 500
            file.write_bytes(data)
        assert not (tmp_path / "run").exists(), "nothing is unpickled"

    @pytest.mark.parametrize("kind", ["snm", "backoff", "hsme", "lstm"])
    @pytest.mark.parametrize(
        "damage",
        [
            lambda text: text.replace(b"<UNK>", b"<OOV>"),
            lambda text: text.replace(b"stone", b"st\xff\xfee"),
            lambda text: text.replace(b"stone\n", b"stone "),
            lambda text: text.replace(b"stone\n", b"\n\n\n\n\n\n"),
            lambda text: text[:-1] + b"x",
            lambda text: b"",
            lambda text: text.replace(b"stone", b""),
        ],
    )
    def test_a_damaged_vocabulary(self, kind: str, damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
        path = Path(shutil.copytree(GOLDEN / kind, tmp_path / "m"))
        manifest = json.loads((path / MANIFEST).read_text())
        made = damage((path / "vocabulary.txt").read_bytes())
        assert made != (path / "vocabulary.txt").read_bytes()
        (path / "vocabulary.txt").write_bytes(made)
        manifest["files"]["vocabulary.txt"]["bytes"] = len(made)
        (path / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(FormatError, match=r"vocabulary(\.txt)? is damaged"):
            snm.load(path).next_words()  # opening does not read the words themselves
        del manifest["files"]["vocabulary.txt"]
        (path / "vocabulary.txt").unlink()
        (path / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(FormatError, match=r"cannot read .*vocabulary\.txt: No such file"):
            snm.load(path)

    @pytest.mark.parametrize("name", ["word_up", "node_up"])
    @pytest.mark.parametrize("value", [2**31 - 1, -(2**31), 60])
    def test_a_tree_that_leads_nowhere(self, name: str, value: int, tmp_path: Path) -> None:
        """The kernel that walks up the tree would not come to an end."""
        path = Path(shutil.copytree(GOLDEN / "hsme", tmp_path / "m"))
        array = np.load(path / f"{name}.npy")
        array[-1] = value
        np.save(path / f"{name}.npy", array)
        if name == "word_up" and value < 0:
            use(path)  # a word without a leaf has probability 0
        else:
            with pytest.raises(FormatError, match="precedes its parent"):
                snm.load(path)


def zst(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").compress(data))


class TestTexts:
    @pytest.fixture(params=["cut", "flipped"])
    def damaged(self, request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
        def change(data: bytes) -> bytes:
            if request.param == "cut":
                return data[:-9]
            return data[:40] + bytes(byte ^ 0x5A for byte in data[40:60]) + data[60:]

        return change

    @pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zst])
    def test_compressed_files(
        self, pack: Callable[[bytes], bytes], damaged: Callable[[bytes], bytes], tmp_path: Path
    ) -> None:
        text, good = tmp_path / "text", tmp_path / "good.txt"
        lines = b"".join(b"the old stone %d %d\n" % (n * n % 997, n * 7 % 113) for n in range(2000))
        text.write_bytes(damaged(pack(lines)))
        good.write_text("the old stone\n")
        model, other = GOLDEN / "snm", GOLDEN / "backoff"
        for arguments in (
            ("ppl", model, text), ("score", model, text), ("verify", model, text, "--contexts", 5),
            ("train", text, "-o", tmp_path / "m"), ("train", good, "--dev", text, "-o", tmp_path / "m"),
            ("mix", model, other, "--dev", text), ("mix", model, other, "--dev", text, "-o", tmp_path / "m"),
            ("mix", model, text, "--dev", good), ("import", text, "-o", tmp_path / "m"),
        ):  # fmt: skip
            done = run(*arguments)
            assert done.exit_code == 2, (arguments, done.output)
            (line,) = done.stderr.strip().split("\n")
            assert "cannot read" in line
            assert len(line) < 400
        assert sorted(path.name for path in tmp_path.iterdir()) == ["good.txt", "text"]

    @pytest.mark.parametrize("pack", [gzip.compress, zst])
    def test_compressed_probabilities(self, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
        (tmp_path / "dev.txt").write_text("the old stone\n")
        (tmp_path / "p").write_bytes(pack(b"0.1 0.2\n0.1\n0.4\n"))
        ok("mix", GOLDEN / "snm", tmp_path / "p", "--dev", tmp_path / "dev.txt")
        numbers = b"0.1 0.2 " + b"9" * 3_000_000
        (tmp_path / "p").write_bytes(pack(numbers))
        assert len(fails("mix", GOLDEN / "snm", tmp_path / "p", "--dev", tmp_path / "dev.txt")) < 600
        (tmp_path / "p").write_bytes(pack(b"0.1 0.2 0.3 " + b"x" * 3_000_000))
        assert len(fails("mix", GOLDEN / "snm", tmp_path / "p", "--dev", tmp_path / "dev.txt")) < 600


class TestResults:
    """The files of a folder of snm reproduce."""

    @pytest.fixture
    def corpus(self, corpus_file: Path, tmp_path: Path) -> Path:
        lines = corpus_file.read_text().strip().split("\n")
        folder = tmp_path / "corpus"
        folder.mkdir()
        for part, chosen in (("train", lines[:200]), ("valid", lines[200:220]), ("test", lines[220:240])):
            (folder / f"{part}.txt").write_text("\n".join(chosen) + "\n")
        return folder

    @pytest.fixture
    def work(self, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("snm.reproduction.workspace.speed", lambda path, text: 1000.0)
        Workspace(tmp_path / "w", corpus).train_only(["kn5"], ["table1"])
        return tmp_path / "w"

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "7", '{"corpus": 3}', "[" * 100_000, '{"corpus": "corpus, test.txt", "kn5": 3}',
                 '{"corpus": "corpus, test.txt", "kn5": {"seconds": "x"}}', '{"kn5": {"seconds": 1}}',
                 '{"corpus": "corpus, test.txt", "kn5": {"seconds": 1, "departures": "x"}}', "\udcff"]
    )  # fmt: skip
    def test_damaged_figures(self, text: str, work: Path, corpus: Path) -> None:
        (work / "figures.json").write_text(text, encoding="utf-8", errors="surrogateescape")
        line = fails("reproduce", "table1", "--only", "kn5", "--corpus", corpus, "-o", work)
        assert "figures.json is damaged" in line
        line = fails(
            "reproduce", "table1", "--only", "kn5", "--corpus", corpus, "-o", work.parent / "x", "--take", work
        )
        assert "figures.json is damaged" in line

    @pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x93NUMPY", header("(2,)", "'<f8'") + b"\xff" * 16])
    def test_damaged_probabilities_are_made_again(self, data: bytes, work: Path, corpus: Path) -> None:
        good = (work / "kn5.test.npy").read_bytes()
        (work / "kn5.test.npy").write_bytes(data)
        said: list[str] = []
        Workspace(work, corpus, notify=said.append).train_only(["kn5"], ["table1"])
        assert "training kn5 again" in said[0]
        assert (work / "kn5.test.npy").read_bytes() == good
        assert not [path.name for path in work.iterdir() if path.name.startswith(".")]

    def test_a_text_that_has_changed(self, work: Path, corpus: Path) -> None:
        lines = (corpus / "test.txt").read_text()
        (corpus / "test.txt").write_text(lines * 2)
        again = Workspace(work, corpus)
        again.train_only(["katz5"], ["table1"])
        from snm.reproduction.tables import Line

        with pytest.raises(FormatError, match="which has changed between the runs"):
            again.row(Line("both", ("kn5", "katz5"), 1.0))

    def test_results_of_unknown_models_are_not_taken(self, work: Path, corpus: Path, tmp_path: Path) -> None:
        figures = json.loads((work / "figures.json").read_text())
        (work / "figures.json").write_text(json.dumps({**figures, "../../evil": figures["kn5"]}))
        np.save(work.parent.parent / "evil.test.npy", np.ones(1))
        other = Workspace(tmp_path / "other", corpus)
        other.take(work)
        assert sorted(other.figures) == ["corpus", "kn5"]

    def test_a_text_without_words(self, corpus: Path, tmp_path: Path) -> None:
        (corpus / "valid.txt").write_text("\n\n")
        with pytest.raises(InputError, match="no words"):
            Workspace(tmp_path / "w", corpus).train_only(["kn5"], ["table1"])

    def test_a_file_in_place_of_the_folder(self, corpus: Path, tmp_path: Path) -> None:
        (tmp_path / "w").write_text("")
        with pytest.raises(SnmError, match="cannot write to"):
            Workspace(tmp_path / "w", corpus)
