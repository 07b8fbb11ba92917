"""A stranger's model: whatever its numbers say, it is refused in one line, or answers. `tests/fuzz` tries many more."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm.baselines.backoff.model import BackoffModel
from snm.baselines.neural.tree import DOUBLINGS, NO_LEAF, Tree
from snm.errors import FormatError, SnmError, SpecError
from snm.features.specification import MAX_CACHES, MAX_TEMPLATES, MAX_TERMS, FeatureSpec
from snm.layouts.counts import CHUNK
from snm.layouts.keys import KeyLayout
from snm.layouts.matrix import INLINE, LONG, PADDING
from snm.loading import MAX_DEPTH
from snm.settings import Settings
from snm.storage import CHECKSUM, MANIFEST, MAX_MANIFEST, open_array, read_manifest, sealed
from snm.text.fields import start_of_values
from tests.conftest import write_bigrams
from tests.test_cli import fails, run

GOLDEN = Path(__file__).parent / "golden" / "format3"
TEXTS = ["the old stone holds the lantern", "the orchard follows a strange river", "the"]


def copied(kind: str, folder: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / kind, folder / "m"))


def reseal(path: Path) -> None:
    """Make sizes and checksums of a manifest right, as a stranger can."""
    manifest = json.loads((path / MANIFEST).read_text())
    for name, entry in manifest["files"].items():
        data = (path / name).read_bytes()
        entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    (path / MANIFEST).write_bytes(sealed(manifest))


def edit(path: Path, **entries: Any) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_bytes(sealed({**manifest, **entries}))


def ask(path: Path) -> None:
    """Everything that follows what arrays say."""
    with snm.load(path) as model:
        assert len(model.score_sentences(TEXTS)) == len(TEXTS)
        model.perplexity(TEXTS)
        model.next_words("the old", k=2)
        state = model.start()
        for word in TEXTS[0].split():
            _, state = model.step(state, word)
        states = model.state_array([model.start(), state])
        ids = np.arange(len(model.vocabulary), dtype=np.uint32)
        model.follow(states, ids, np.argsort(-model.expand(states, ids), axis=None)[:2])
        if model.manifest["kind"] in ("snm", "sources"):
            model.explain(TEXTS[0])


def refusal(call: Callable[[], object]) -> str:
    """What a call is refused with, on one line; empty if it is not refused."""
    try:
        call()
    except SnmError as error:
        return " ".join(str(error).splitlines()) if "\n" not in str(error) else pytest.fail(str(error))
    return ""


FILLS = {"ones": 0xFF, "zeros": 0, "half": 0x80, "seven": 7}
ARRAYS = [
    *(("snm", name) for name in ("starts", "data", "long_links", "singles", "classes")),
    *(("snm-long-rows", name) for name in ("starts", "data", "long_links", "singles")),
    *(("snm-16bit-ungated", name) for name in ("starts", "data", "long_links", "singles")),
    *(("backoff", name) for name in ("features", "index", "offsets", "targets", "probabilities", "backoffs")),
    *(("hsme", name) for name in ("word_up", "node_up", "starts", "table")),
    *(("lstm", name) for name in ("vectors.0", "layer.weight_hh_l0", "biases")),
]


@pytest.mark.parametrize(("kind", "name"), ARRAYS)
@pytest.mark.parametrize("part", ["all", "middle", "end"])
def test_numbers_that_lead_anywhere(kind: str, name: str, part: str, tmp_path: Path) -> None:
    path = copied(kind, tmp_path)
    file = path / f"{name}.npy"
    header, body = file.read_bytes()[:128], file.read_bytes()[128:]
    start, stop = {"all": (0, None), "middle": (len(body) // 3, len(body) // 2), "end": (-8, None)}[part]
    fills = [bytes([fill]) * len(body[start:stop]) for fill in FILLS.values()]
    for fill in (*fills, np.random.default_rng(1).bytes(len(body[start:stop]))):
        made = bytearray(body)
        made[start:stop] = fill
        file.write_bytes(header + made)
        reseal(path)
        refusal(lambda: ask(path))
        refusal(lambda: snm.verify(path, contexts=3))
        refusal(lambda: snm.prune(path, tmp_path / "s", links=20, force=True))


@pytest.mark.parametrize("value", [-(1 << 63), (1 << 63) - 1, -1, -(1 << 62)])
def test_offsets_whose_difference_is_no_number(value: int, tmp_path: Path) -> None:
    """An offset of -2^63 less one above zero is above zero: the search began below the links."""
    path = copied("backoff", tmp_path)
    offsets = np.load(path / "offsets.npy")
    for chosen in (slice(1, -1, 2), slice(2, -1, 2), slice(1, -1)):
        made = offsets.copy()
        made[chosen] = value
        np.save(path / "offsets.npy", made)
        reseal(path)
        refusal(lambda: ask(path))
        with pytest.raises(FormatError, match="offsets are not in order"):
            snm.verify(path)


class TestRecords:
    """Pages whose records are what the writer never writes."""

    def change(self, path: Path, flags: int) -> None:
        """Set the flags of every record."""
        starts, data = np.load(path / "starts.npy").astype(np.int64), np.load(path / "data.npy")
        for at, end in pairwise(starts.tolist()):
            if at == end:
                continue
            rows = int(data[at])
            entries = data[at + 1 + 3 * rows : at + 1 + 5 * rows].copy().view("<u2")
            for entry in entries[entries >= INLINE].tolist():
                data[at + 1 + 5 * rows + entry - INLINE + 1] = flags
        np.save(path / "data.npy", data)
        reseal(path)

    @pytest.mark.parametrize("flags", [0, 33, 63, LONG | 63, LONG | 9, 0xFF, 0x7F])
    @pytest.mark.parametrize("kind", ["snm-long-rows", "sources"])
    def test_flags_of_records(self, kind: str, flags: int, tmp_path: Path) -> None:
        """A row that is long and has many links too was read twice, the second time by the number of a feature type."""
        path = copied(kind, tmp_path)
        for folder in (path, *path.glob("member*")):
            if (folder / "data.npy").exists():
                self.change(folder, flags)
        reseal(path)
        for said in (refusal(lambda: ask(path)), refusal(lambda: snm.verify(path, contexts=3))):
            assert not said or "damaged" in said or "page" in said

    def test_rows_that_share_their_links(self, tmp_path: Path) -> None:
        """A small file could tell of as many links as it has rows times links."""
        path = copied("snm-long-rows", tmp_path)
        model = snm.load(path)
        data, starts = np.load(path / "data.npy"), model.matrix.starts.astype(np.int64)  # type: ignore[attr-defined]
        records = []
        for at, end in pairwise(starts.tolist()):
            rows = int(data[at]) if at < end else 0
            entries = data[at + 1 + 3 * rows : at + 1 + 5 * rows].copy().view("<u2")
            offsets = entries[entries >= INLINE].astype(np.int64) - INLINE
            records += (at + 1 + 5 * rows + offsets).tolist()
        long_rows = [record for record in records if data[record + 1] == LONG]
        assert len(long_rows) > 1
        for record in long_rows[1:]:
            data[record + 2 : record + 16] = data[long_rows[0] + 2 : long_rows[0] + 16]
        np.save(path / "data.npy", data)
        reseal(path)
        with pytest.raises(FormatError, match="page"):
            snm.verify(path)

    def test_pages_end_before_the_padding(self, tmp_path: Path) -> None:
        path = copied("snm", tmp_path)
        np.save(path / "data.npy", np.load(path / "data.npy")[: PADDING - 1])
        reseal(path)
        with pytest.raises(FormatError, match="contradict the manifest"):
            snm.load(path)


class TestOpening:
    @pytest.mark.parametrize("bits", [0, -1, 41, 63, 64])
    def test_numbers_of_pages(self, bits: int, tmp_path: Path) -> None:
        path = copied("snm", tmp_path)
        pages = json.loads((path / MANIFEST).read_text())["pages"]
        edit(path, pages={**pages, "bits": bits})
        with pytest.raises(FormatError, match=r"pages\.bits is"):
            snm.verify(path)

    @pytest.mark.parametrize("types", [[0, 0], [99], [1, 2, 3, 4, 99]])
    def test_types_of_features_seen_once(self, types: list[int], tmp_path: Path) -> None:
        path = copied("snm", tmp_path)
        pages = json.loads((path / MANIFEST).read_text())["pages"]
        edit(path, pages={**pages, "single_types": types})
        with pytest.raises(FormatError, match="are no types of the features"):
            snm.load(path)

    @pytest.mark.parametrize("slots", [0, 1, 3, 1000])
    def test_tables_of_features(self, slots: int, tmp_path: Path) -> None:
        path = copied("hsme", tmp_path)
        m = json.loads((path / MANIFEST).read_text())
        np.save(path / "table.npy", np.zeros(slots, "<f4"))
        edit(path, network={**m["network"], "slots": slots}, arrays={**m["arrays"], "table": [slots]})
        reseal(path)
        with pytest.raises(FormatError, match="power of two"):
            snm.verify(path)

    @pytest.mark.parametrize("name", ["gate", "values", "unigrams"])
    def test_small_arrays_are_read(self, name: str, tmp_path: Path) -> None:
        path = copied("snm", tmp_path)
        array = np.load(path / f"{name}.npy")
        array[-1] = np.nan
        np.save(path / f"{name}.npy", array)
        reseal(path)
        with pytest.raises(FormatError, match=r"not finite|no number|row is damaged"):
            snm.load(path)

    def test_a_gate_whose_sums_are_infinite(self, tmp_path: Path) -> None:
        path = copied("snm", tmp_path)
        array = np.load(path / "gate.npy")
        array[:-100] = 3e38
        np.save(path / "gate.npy", array)
        reseal(path)
        with pytest.raises(FormatError, match="not finite"):
            snm.load(path)

    def test_a_probability_that_is_no_number(self, tmp_path: Path) -> None:
        path = copied("backoff", tmp_path)
        array = np.load(path / "probabilities.npy")
        array[:] = np.nan
        np.save(path / "probabilities.npy", array)
        reseal(path)
        model = snm.load(path)
        for call in (lambda: model.score("the old stone"), lambda: model.next_words("the"), model.generate):
            with pytest.raises(FormatError, match="it gives the probability nan"):
                call()

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes in folders")
    @pytest.mark.parametrize("name", ["vocabulary.txt", "data.npy", MANIFEST, "spelling.txt"])
    def test_a_pipe_in_place_of_a_file(self, name: str, tmp_path: Path) -> None:
        """Reading it would not come to an end."""
        path = copied("snm", tmp_path)
        manifest = json.loads((path / MANIFEST).read_text())
        manifest["files"].pop(name, None)
        spelling = {"order": 6, "words": 1, "known": 0.5}
        (path / MANIFEST).write_bytes(
            sealed({**manifest, "spelling": spelling} if name == "spelling.txt" else manifest)
        )
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
        with pytest.raises(FormatError, match=r"it is no plain file|expected a folder with"):
            snm.load(path)

    @pytest.mark.parametrize("version", [b"\x02\x00", b"\x01\x01"])
    def test_headers_of_arrays(self, version: bytes, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.arange(9))
        assert open_array(tmp_path / "a.npy", "<i8").tolist() == list(range(9))
        data = (tmp_path / "a.npy").read_bytes()
        for made in (data[:6] + version + data[8:], data + b"x", data[:-1], data.replace(b"(9,)", b"(9 )")):
            (tmp_path / "a.npy").write_bytes(made)
            with pytest.raises(FormatError, match=r"not a readable array|its header tells of"):
                open_array(tmp_path / "a.npy", "<i8")


class TestMembers:
    def nest(self, path: Path, depth: int) -> Path:
        """A mixture in a mixture in a mixture."""
        for _ in range(depth):
            outer = path.with_name("outer")
            shutil.copytree(GOLDEN / "mixture", outer)
            shutil.rmtree(outer / "member0")
            os.rename(path, outer / "member0")
            manifest = json.loads((outer / MANIFEST).read_text())
            files = {n: e for n, e in manifest["files"].items() if n.startswith("member1")}
            (outer / MANIFEST).write_bytes(sealed({**manifest, "files": files}))
            os.rename(outer, path)
        return path

    def test_mixtures_of_mixtures(self, tmp_path: Path) -> None:
        path = Path(shutil.copytree(GOLDEN / "snm", tmp_path / "m"))
        assert snm.load(self.nest(path, 3)).score("the old stone") < 0
        with pytest.raises(FormatError, match=f"at most {MAX_DEPTH} one inside of another"):
            snm.load(self.nest(path, MAX_DEPTH))

    @pytest.mark.parametrize(
        "members", [["member0", "member0"], ["member0"] * 1000, ["member0\n"], ["member0/."], ["é" * 128]]
    )
    def test_names_of_members(self, members: list[str], tmp_path: Path) -> None:
        path = copied("mixture", tmp_path)
        edit(path, members=members, weights=[1 / len(members)] * len(members))
        with pytest.raises(FormatError, match="folders of the model, each once, no links"):
            snm.load(path)

    def test_a_backoff_model_that_does_not_say_how_it_was_estimated(self, tmp_path: Path) -> None:
        path = copied("backoff", tmp_path)
        manifest = json.loads((path / MANIFEST).read_text())
        manifest.pop("estimation")
        (path / MANIFEST).write_bytes(sealed(manifest))
        snm.prune(path, tmp_path / "small", links=40).close()

    def test_a_member_with_a_cache(self, tmp_path: Path) -> None:
        """Its row was written behind those of the joint gate."""
        path = copied("sources", tmp_path)
        features = json.loads((path / "member0" / MANIFEST).read_text())["features"]
        edit(path / "member0", features=f"{features} + cache(a=0)", gate=None)
        reseal(path)
        with pytest.raises(FormatError, match="has a cache, which a member cannot have"):
            snm.load(path)

    @pytest.mark.parametrize("shares", [None, "x", {}, [None, 1], [2, 0], [-1, 0], [float("nan"), 0], [True, 0]])
    def test_shares(self, shares: Any, tmp_path: Path) -> None:
        path = copied("union", tmp_path)
        edit(path, shares=shares)
        with pytest.raises(FormatError, match="shares is"):
            snm.load(path)


def test_a_perplexity_without_bounds(tmp_path: Path) -> None:
    path = copied("mixture", tmp_path)
    edit(path, weights=[1e-320, 0.0])
    assert snm.load(path).perplexity(TEXTS).ppl == math.inf


class TestManifestChecksum:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        write_bigrams(tmp_path / "text", 1, 60, 30, 3)
        snm.train(tmp_path / "text", tmp_path / "m", Settings(model="kn", order=2, threads=1)).close()
        return tmp_path / "m"

    def test_every_changed_byte_is_found(self, model: Path) -> None:
        data = (model / MANIFEST).read_bytes()
        assert CHECKSUM not in read_manifest(model)
        for at in range(0, len(data), 7):
            changed = bytearray(data)
            changed[at] ^= 1
            (model / MANIFEST).write_bytes(changed)
            said = refusal(lambda: read_manifest(model))
            assert said or b'"checksum"' not in changed, "a manifest without one is that of an older version"

    def test_it_says_so(self, model: Path) -> None:
        text = (model / MANIFEST).read_text()
        (model / MANIFEST).write_text(text.replace('"links": ', '"links": 1'))
        assert "manifest.json is damaged: it differs from its checksum" in fails("info", model)
        assert "manifest.json is damaged: it differs from its checksum" in fails("verify", model)

    def test_the_rule_of_the_format(self, model: Path) -> None:
        data = (model / MANIFEST).read_bytes()
        digest = json.loads(data)[CHECKSUM]
        assert data.count(digest.encode()) == 1
        assert hashlib.sha256(data.replace(digest.encode(), b"0" * 64)).hexdigest() == digest

    @pytest.mark.parametrize("digest", [None, 7, "", "0" * 64, "g" * 64, ["0" * 64]])
    def test_what_is_no_checksum(self, digest: Any, model: Path) -> None:
        manifest = json.loads((model / MANIFEST).read_text())
        (model / MANIFEST).write_text(json.dumps({**manifest, CHECKSUM: digest}))
        with pytest.raises(FormatError, match=r"manifest\.json is damaged"):
            snm.load(model)

    def test_older_models_have_none(self, model: Path) -> None:
        manifest = json.loads((model / MANIFEST).read_text())
        del manifest[CHECKSUM]
        (model / MANIFEST).write_text(json.dumps(manifest))
        snm.verify(model, contexts=5)

    def test_half_a_character(self, model: Path) -> None:
        manifest = json.loads((model / MANIFEST).read_text())
        for text, fits in (("\ud83d\ude00", True), ("\ud83d", False)):
            (model / MANIFEST).write_bytes(sealed({**manifest, "written_by": text}))
            assert ("is damaged" in fails("info", model)) if not fits else run("info", model).exit_code == 0

    def test_unknown_extensions_are_not_all_listed(self, model: Path) -> None:
        edit(model, requires=[f"x{i}" for i in range(1000)])
        assert len(fails("info", model)) < 400

    def test_a_manifest_has_a_largest_size(self, model: Path) -> None:
        (model / MANIFEST).write_bytes(b" " * (MAX_MANIFEST + 1))
        with pytest.raises(FormatError, match="expected up to"):
            snm.load(model)


class TestSpecifications:
    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("skip(r=1..32, s=1..1000, a=0..32)", f"the most is {MAX_TEMPLATES}"),
            (" + ".join(f"cache(a=0..32, words={n})" for n in (10, 20, 30)), f"is {MAX_CACHES}"),
            (" + ".join(["ngram(0)"] * (MAX_TERMS + 1)), f"the most is {MAX_TERMS}"),
        ],
    )
    def test_what_is_too_large_is_refused_at_once(self, text: str, why: str) -> None:
        begun = time.process_time()
        with pytest.raises(SpecError, match=why):
            FeatureSpec(text)
        assert time.process_time() - begun < 5


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counts")
    write_bigrams(folder / "text", 1, 80, 40, 3)
    (folder / "words").write_text("".join(f"w{i}\n" for i in range(40)))
    how = Settings(vocab=folder / "words", features="ngram(0..2)", threads=1)
    snm.count_text(folder / "text", folder / "c", how)
    return folder / "c"


class TestCounts:
    def reseal(self, path: Path) -> None:
        described = json.loads((path / "counts" / "counts.json").read_text())
        for name, entry in described["files"].items():
            data = (path / "counts" / name).read_bytes()
            entry.update({"bytes": len(data)} if "bytes" in entry else {"sha256": hashlib.sha256(data).hexdigest()})
        (path / "counts" / "counts.json").write_text(json.dumps(described))
        reseal(path)

    @pytest.mark.parametrize("field", CHUNK.names or ())
    @pytest.mark.parametrize("value", [-1, 0, 1, 63, 1 << 14])
    def test_chunks_that_lead_anywhere(self, field: str, value: int, counted: Path, tmp_path: Path) -> None:
        path = Path(shutil.copytree(counted, tmp_path / "c"))
        chunks = np.load(path / "counts" / "chunks.npy")
        given = np.array(value).astype(chunks.dtype[field])
        chunks[field][0] = given if chunks[field][0] != given else given + 1
        np.save(path / "counts" / "chunks.npy", chunks)
        self.reseal(path)
        fails("merge", path, path, "-o", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("fill", [0, 0xFF, 0x55, None])
    def test_codes_with_their_checksums(self, fill: int | None, counted: Path, tmp_path: Path) -> None:
        from snm.reference.counts import checksum

        path = Path(shutil.copytree(counted, tmp_path / "c"))
        codes, chunks = np.load(path / "counts" / "codes.npy"), np.load(path / "counts" / "chunks.npy")
        random = np.random.default_rng(1).bytes(codes.nbytes)
        codes.view(np.uint8)[:] = np.frombuffer(random, np.uint8) if fill is None else fill
        ends = np.cumsum(chunks["words"])
        for chunk, start, end in zip(chunks, ends - chunks["words"], ends, strict=True):
            chunk["checksum"] = checksum(codes[start:end].tolist())
        np.save(path / "counts" / "codes.npy", codes)
        np.save(path / "counts" / "chunks.npy", chunks)
        self.reseal(path)
        assert "damaged" in fails("merge", path, path, "-o", tmp_path / "out")

    @pytest.mark.parametrize(
        "layout",
        [{"target_bits": 0}, {"type_bits": 99}, {"bucket_bits": -1}, {"bucket_bits": 10**9}, {"type_bits": 1.5}],
    )
    def test_layouts(self, layout: dict[str, Any], counted: Path, tmp_path: Path) -> None:
        path = Path(shutil.copytree(counted, tmp_path / "c"))
        described = json.loads((path / "counts" / "counts.json").read_text())
        assert KeyLayout(**described["layout"]).is_valid
        described["layout"].update(layout)
        (path / "counts" / "counts.json").write_text(json.dumps(described))
        self.reseal(path)
        assert "the keys are" in fails("merge", path, path, "-o", tmp_path / "out")


def test_a_state_of_unigrams_has_a_template_for_its_word(tmp_path: Path) -> None:
    """The kernel read behind the end of the templates."""
    write_bigrams(tmp_path / "text", 1, 60, 30, 3)
    model = snm.train(tmp_path / "text", tmp_path / "m", Settings(model="kn", order=1, threads=1))
    assert isinstance(model, BackoffModel)
    _, arrays = model._beams.record()
    assert len(arrays["templates"]) == len(arrays["keys"]) == model.state_width + 1
    score, _ = model.step(model.start(), "w1")
    assert score == pytest.approx(model.score_words(["w1"])[0][0][1])


def test_probability_zero_is_written_by_convention(tmp_path: Path) -> None:
    (tmp_path / "m.arpa").write_text(
        "\\data\\\nngram 1=4\n\n\\1-grams:\n-99\t<s>\n-1\t</s>\n-99\tnever\n-0.1\ta\n\n\\end\\\n"
    )
    model = snm.import_arpa(tmp_path / "m.arpa", tmp_path / "m")
    snm.export_arpa(model, tmp_path / "again.arpa")
    assert "-99\tnever\n" in (tmp_path / "again.arpa").read_text()


def test_backoff_weights_are_numbers_of_32_bits(tmp_path: Path) -> None:
    lines = ["\\data\\", "ngram 1=3", "ngram 2=1", "", "\\1-grams:", "-1\t</s>", "-1\t<s>\t39", "-1\ta", "",
             "\\2-grams:", "-1\t<s> a", "", "\\end\\", ""]  # fmt: skip
    (tmp_path / "m.arpa").write_text("\n".join(lines))
    with pytest.raises(FormatError, match="the other not above 38"):
        snm.load(tmp_path / "m.arpa")


@pytest.mark.parametrize(
    ("lines", "begins"),
    [
        (b"<S>\na\n", -1),
        (b"<S>\n\x01f=\n\x01f=a\n", 4),
        (b"<S>\n\x01f=a\n\x01f=\n\x01f=b=c\n\x01g=\n", 9),
        (b"<S>\n\x01f=\nword\n", -1),
        (b"<S>\n\x01f=\nword\n\x01g=\n", 13),
        (b"<S>\n\x01=\n", -1),
        (b"<S>\n" + b"\x01f=\n" * 200_000 + b"word\n", -1),
        (b"<S>\n" + b"\x01f=x\n" * 200_000, -1),
    ],
)
def test_where_the_values_of_fields_begin(lines: bytes, begins: int) -> None:
    """It took time in proportion to the square of the lines."""
    begun = time.process_time()
    assert start_of_values(lines) == begins
    assert time.process_time() - begun < 5


def test_a_tree_without_branches() -> None:
    """A word's probability took as many steps as there are words."""
    n = 600
    node_up = np.concatenate([[NO_LEAF], 2 * np.arange(n - 1)]).astype(np.int32)
    tree = Tree(np.full(n, NO_LEAF, np.int32), node_up)
    assert tree.is_ordered()
    assert not tree.is_shallow()
    assert Tree(tree.word_up, node_up[: (1 << DOUBLINGS) + 1]).is_shallow()
    assert not Tree(tree.word_up, node_up[: (1 << DOUBLINGS) + 2]).is_shallow()
    assert Tree(tree.word_up, node_up[:1]).is_shallow()
    fibonacci = [1, 1]
    while fibonacci[-1] < 1 << 60:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    counts = np.array([0, 0, *fibonacci])
    built, _ = Tree.build(counts, np.zeros(len(counts), np.int64), 0)
    assert built.is_shallow()
