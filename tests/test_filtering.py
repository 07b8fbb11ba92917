"""Tests of filtering text, and of scoring many lines at once."""

from __future__ import annotations

import gzip
import io
import json
import math
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from click.testing import CliRunner

import snm
from snm import filtering
from snm.cli.main import main
from snm.errors import InputError, SettingsError
from snm.filtering import FilterReport, TextPerplexity, filter_text
from snm.progress import ignore
from snm.scoring.lines import score_block
from snm.settings import Settings
from tests.conftest import train

LINES = [
    "the cat sees the fish", "xqzj wvvk qqq", "a dog likes a purple cake", "", "the old man eats fish", "<s> </s>",
    "fish fish fish fish the the", "a cat", "the dog  sees\tthe man\r", "the cat sees the fish", "Fisch und Kätzchen",
] * 5  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("filtering")


@pytest.fixture(scope="module")
def model(folder: Path, corpus_file: Path) -> snm.LanguageModel:
    return train([corpus_file], folder / "model", Settings(features="ngram(0..2)", gate=0, threads=1, min_count=1))


@pytest.fixture(scope="module")
def closed(folder: Path, corpus_file: Path) -> snm.LanguageModel:
    return train([corpus_file], folder / "closed", Settings(model="kn", order=2, threads=1, closed=True))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_bytes("".join(line + "\n" for line in LINES).encode())
    return path


def expected_ppl(model: snm.LanguageModel, lines: list[str], spelled: bool = True) -> np.ndarray:
    """By the slow road: the words of each line."""
    scored = [[p for _, p in words if not math.isnan(p)] for words in model.score_words(lines, spelled=spelled)]
    return np.array([10 ** (-sum(p) / len(p)) if p else math.nan for p in scored])


def kept_lines(mask: np.ndarray) -> str:
    return "".join(line + "\n" for line, kept in zip(LINES, mask, strict=True) if kept)


@pytest.mark.parametrize("spelled", [True, False])
def test_lines_score_as_sentences_do(model: snm.LanguageModel, closed: snm.LanguageModel, spelled: bool) -> None:
    block = "".join(line + "\n" for line in LINES).encode()
    for one in (model, closed):
        scores = score_block(one, block, spelled=spelled)
        assert scores.ppl == pytest.approx(expected_ppl(one, LINES, spelled), nan_ok=True)
        assert scores.logprob10 == pytest.approx(one.score_sentences(LINES, spelled=spelled), nan_ok=True)
        words = one.score_words(LINES)
        assert scores.tokens.tolist() == [len(scored) for scored in words]
        oov = [sum(one.vocabulary.id_of(word) == 2 for word, _ in scored) for scored in words]
        assert scores.oov.tolist() == oov
        assert oov[1] == 3
    assert len(score_block(model, b"\n\n", spelled=True).ppl) == 2


def test_lines_of_a_document_model_are_segments(folder: Path, corpus_file: Path) -> None:
    settings = Settings(features="ngram(0..2)", gate=0, threads=1, document=True)
    documents = train([corpus_file], folder / "documents", settings)
    lines = ["the cat", "sees the fish", "", "a dog"]
    scores = score_block(documents, "".join(line + "\n" for line in lines).encode(), spelled=True)
    assert scores.logprob10 == pytest.approx([documents.score(line) for line in lines], nan_ok=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_lines_below_a_perplexity_are_kept(
    model: snm.LanguageModel, text: Path, tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snm.text.files.BLOCK", 64)  # many batches
    ppl = expected_ppl(model, LINES)
    limit = float(np.nanmedian(ppl)) + 1e-3
    report = filter_text(model, text, tmp_path / "out", max_ppl=limit, threads=threads)
    assert (tmp_path / "out").read_bytes().decode() == kept_lines(ppl <= limit)
    assert (report.records, report.kept, report.blank) == (len(LINES), (ppl <= limit).sum(), 10)
    assert report.limit == pytest.approx(ppl[ppl <= limit].max())
    both = filter_text(model, text, tmp_path / "out", max_ppl=limit, min_ppl=5, threads=threads)
    assert (tmp_path / "out").read_bytes().decode() == kept_lines((ppl <= limit) & (ppl >= 5))
    assert 0 < both.kept < report.kept


def test_gibberish_passes_only_as_the_unknown_word(model: snm.LanguageModel, text: Path, tmp_path: Path) -> None:
    filter_text(model, text, tmp_path / "out", keep=0.5)
    assert "xqzj" not in (tmp_path / "out").read_text()
    ppl = expected_ppl(model, LINES)
    assert ppl[1] > 1e6 > ppl[0]


@pytest.mark.parametrize("keep", [0.001, 0.3, 0.5, 1.0])
def test_a_share_is_exact(model: snm.LanguageModel, text: Path, tmp_path: Path, keep: float) -> None:
    """There are many equal scores: the first of them are kept."""
    ppl = expected_ppl(model, LINES).astype(np.float32)
    wanted = round(keep * int((~np.isnan(ppl)).sum()))
    order = np.lexsort((np.arange(len(LINES)), np.round(ppl, 3)))[:wanted]
    report = filter_text(model, text, tmp_path / "out", keep=keep)
    assert (tmp_path / "out").read_bytes().decode() == kept_lines(np.isin(np.arange(len(LINES)), order))
    assert report.kept == len(order)


def test_a_ratio_of_two_models(model: snm.LanguageModel, closed: snm.LanguageModel, text: Path, tmp_path: Path) -> None:
    other = expected_ppl(closed, LINES)
    ratio = expected_ppl(model, LINES) / other
    limit = float(np.nanmedian(ratio)) + 1e-3
    filter_text(model, text, tmp_path / "out", against=closed, max_ratio=limit)
    assert (tmp_path / "out").read_bytes().decode() == kept_lines(ratio <= limit)
    assert TextPerplexity(model, against=closed.path)(["the cat", ""]) == pytest.approx(
        [float(expected_ppl(model, ["the cat"])[0] / expected_ppl(closed, ["the cat"])[0]), math.nan], nan_ok=True
    )


def as_jsonl(lines: list[str]) -> str:
    """Records of one or two lines."""
    return "".join(json.dumps({"id": i, "body": f"{line}\nthe cat"}) + "\n" for i, line in enumerate(lines))


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress
}  # fmt: skip


def unpacked(path: Path) -> bytes:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    if path.suffix == ".zst":
        with zstandard.open(path, "rb", dctx=zstandard.ZstdDecompressor()) as file:
            data: bytes = file.read()
        return data
    return path.read_bytes()


@pytest.mark.parametrize("suffix", PACK)
def test_compressed_json_lines(
    model: snm.LanguageModel, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snm.text.files.BLOCK", 256)
    path, out = tmp_path / f"in.jsonl{suffix}", tmp_path / f"out.jsonl{suffix}"
    path.write_bytes(PACK[suffix](as_jsonl(LINES).encode()))
    report = filter_text(model, path, out, keep=0.4, field="body", threads=2)
    kept = [json.loads(line)["id"] for line in unpacked(out).splitlines()]
    sums = [model.score_words([line, "the cat"], spelled=True) for line in LINES]
    ppl = [10 ** (-np.mean([p for words in one for _, p in words])) for one in sums]
    assert kept == sorted(np.lexsort((np.arange(len(ppl)), np.round(ppl, 3)))[: len(kept)].tolist())
    assert report.kept == len(kept) == round(0.4 * len(LINES))
    none = filter_text(model, path, out, max_ppl=1e-9, field="body")
    assert (none.kept, none.limit, unpacked(out)) == (0, None, b"")


def test_parquet(model: snm.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("snm.text.records.ROWS", 7)
    monkeypatch.setattr("snm.text.records.ROW_GROUP_BYTES", 100)
    table = arrow.table({"id": list(range(len(LINES))), "body": [line or None for line in LINES]})
    parquet.write_table(table, tmp_path / "in.parquet")
    limit = float(np.nanmedian(expected_ppl(model, LINES))) + 1e-3
    filter_text(model, tmp_path / "in.parquet", tmp_path / "out.parquet", max_ppl=limit, field="body", threads=2)
    kept = np.flatnonzero(expected_ppl(model, LINES) <= limit)
    assert parquet.read_table(tmp_path / "out.parquet").equals(table.take(kept))
    with pytest.raises(InputError, match=r"no column 'text' of strings; name one with --field: body"):
        filter_text(model, tmp_path / "in.parquet", tmp_path / "out.parquet", max_ppl=limit)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="cannot read"):
        filter_text(model, tmp_path / "bad.parquet", tmp_path / "out.parquet", max_ppl=limit)
    with pytest.raises(SettingsError, match="name it accordingly"):
        filter_text(model, tmp_path / "in.parquet", tmp_path / "out.jsonl", max_ppl=limit)


class Killed(BaseException):
    """As if the process ended."""


@pytest.mark.parametrize("cut", [0, 7, 12])
def test_a_killed_run_goes_on(
    model: snm.LanguageModel, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr("snm.text.files.BLOCK", 64)
    out, score, calls = tmp_path / "out", TextPerplexity.score, list[int]()

    def counted(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == dies_at:
            raise Killed
        return score(self, *arguments)

    monkeypatch.setattr(TextPerplexity, "score", counted)
    dies_at, notes = 0, list[str]()
    straight = filter_text(model, text, out, keep=0.4)
    expected, batches = out.read_bytes(), len(calls)
    out.unlink()
    dies_at = batches + 6
    with pytest.raises(Killed):
        filter_text(model, text, out, keep=0.4, resume=True)
    assert not out.exists()
    scores = tmp_path / "out.work" / "scores"
    scores.write_bytes(scores.read_bytes()[: scores.stat().st_size - cut])  # a batch that was written in part
    calls.clear()
    again = filter_text(model, text, out, keep=0.4, resume=True, notify=notes.append)
    assert again.kept == straight.kept
    assert out.read_bytes() == expected
    assert not (tmp_path / "out.work").exists()
    assert "going on" in notes[0]
    assert len(calls) == batches - 5 + (cut > 0)


def test_another_run_is_not_gone_on_with(model: snm.LanguageModel, text: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextPerplexity, "score", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            filter_text(model, text, tmp_path / "out", keep=0.4, resume=True)
    with pytest.raises(SettingsError, match="its spelled was different"):
        filter_text(model, text, tmp_path / "out", keep=0.4, resume=True, spelled=False)
    assert filter_text(model, text, tmp_path / "out", max_ppl=1e3, resume=True).kept
    (tmp_path / "other.work").mkdir()
    (tmp_path / "other.work" / "mine").touch()
    with pytest.raises(SettingsError, match="is not the work of a filter"):
        filter_text(model, text, tmp_path / "other", keep=0.4, resume=True)


def test_standard_input_and_output(model: snm.LanguageModel, text: Path) -> None:
    ppl = expected_ppl(model, LINES)
    for options in (["--keep", "100%"], ["--max-ppl", "1e30"]):
        made = CliRunner().invoke(
            main, ["filter", str(model.path), "-", "-o", "-", "--json", *options], input=text.read_bytes()
        )
        assert made.exit_code == 0, made.output
        assert made.stdout_bytes.startswith(kept_lines(~np.isnan(ppl)).encode())
        assert json.loads(made.stdout.splitlines()[-1])["kept"] == len(LINES) - 10


def test_a_histogram(model: snm.LanguageModel, text: Path, tmp_path: Path) -> None:
    report = filter_text(model, text, None, histogram=tmp_path / "scores.png")
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
    ppl = expected_ppl(model, LINES)
    assert report.kept == len(LINES) - 10
    for share, value in report.quantiles.items():
        below = np.nanquantile(ppl, float(share.rstrip("%")) / 100, method="inverted_cdf")
        assert value == pytest.approx(below, rel=0.013)


def test_an_empty_text(model: snm.LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "in.txt").touch()
    choices: list[Any] = [{"keep": 0.5}, {"max_ppl": 10}]
    for options in choices:
        report = filter_text(model, tmp_path / "in.txt", tmp_path / "out.gz", **options)
        assert (report.records, report.kept, report.quantiles) == (0, 0, {})
        assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == b""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing says which text is kept"),
        ({"keep": 30}, "keep is 30; expected a share above 0"),
        ({"keep": 0.3, "max_ppl": 9}, "keep excludes limits"),
        ({"max_ppl": -1}, "max_ppl is -1; expected a number above 0"),
        ({"max_ppl": "x"}, "max_ppl is 'x'; expected a number"),
        ({"max_ratio": 1}, "name the other one with against"),
        ({"against": "model", "max_ppl": 9}, "the score is a ratio"),
        ({"keep": 0.3, "format": "csv"}, "expected one of text, jsonl, parquet"),
        ({"max_ppl": 9, "output": "in.txt"}, "is the text itself"),
        ({"max_ppl": 9, "resume": True, "output": "-"}, "resume needs a file"),
        ({"max_ppl": 9, "source": "."}, "files; filter one at a time"),
        ({"max_ppl": 9, "format": "jsonl"}, "line 1: no JSON object with a string in 'text'"),
        ({"max_ppl": 9, "format": "parquet", "output": "-"}, "cannot be read from standard input"),
    ],
)
def test_mistakes_are_told(
    model: snm.LanguageModel, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "another.txt").touch()
    more = {name: value for name, value in options.items() if name not in ("source", "output")}
    with pytest.raises((SettingsError, InputError), match=message):
        filter_text(model, options.get("source", "in.txt"), options.get("output", "out"), **more)
    assert not (tmp_path / "out").exists()


def test_bad_lines(model: snm.LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text": "the cat"}\n{"text": 3}\n[1]\n\xff\n{"text": "the \\ud800 dog\\u0000"}\nno\n\n')
    with pytest.raises(InputError, match=r"in.jsonl, line"):
        filter_text(model, path, tmp_path / "out", max_ppl=1e30)
    report = filter_text(model, path, tmp_path / "out", max_ppl=1e30, on_error="skip-line")
    assert (report.kept, report.blank, report.bad_lines) == (2, 5, 1)


def test_texts_of_other_programs(model: snm.LanguageModel) -> None:
    perplexity = pickle.loads(pickle.dumps(TextPerplexity(model)))
    texts = ["the cat sees", "the cat\nsees the fish\n", "", "a\0b"]
    found = perplexity(texts)
    assert found[:1] == pytest.approx(expected_ppl(model, texts[:1]))
    two = [p for words in model.score_words(["the cat", "sees the fish"]) for _, p in words]
    assert found[1] == pytest.approx(10 ** -np.mean(two))
    assert math.isnan(found[2])
    assert len(perplexity([])) == 0
    with pytest.raises(InputError, match="expected strings"):
        perplexity([None])


def test_the_report_adds_up(model: snm.LanguageModel, text: Path) -> None:
    report = filter_text(model, text, None)
    assert isinstance(report, FilterReport)
    assert report.tokens == sum(map(len, model.score_words(LINES)))
    assert report.oov == sum(model.vocabulary.id_of(w) == 2 for words in model.score_words(LINES) for w, _ in words)


def test_the_command_scores_lines_with_perplexities(model: snm.LanguageModel, text: Path) -> None:
    def run(*options: str) -> Iterator[str]:
        made = CliRunner().invoke(main, ["score", str(model.path), str(text), "--threads", "2", *options])
        assert made.exit_code == 0, made.output
        return iter(made.stdout.split("\n"))

    spelled = expected_ppl(model, LINES)
    rows = [line.split("\t") for line in run("--ppl")][:-1]
    assert [float(row[1]) if row[0] else math.nan for row in rows] == pytest.approx(spelled, rel=1e-2, nan_ok=True)
    assert rows[1][2:] == ["4", "3"]
    assert rows[3] == [""]
    lines = [json.loads(line) for line in list(run("--json", "--unk"))[:-1]]
    plain = expected_ppl(model, LINES, spelled=False)
    assert [line["ppl"] or math.nan for line in lines] == pytest.approx(plain, nan_ok=True)
    words = [json.loads(line) for line in list(run("--json", "--unk", "--tokens"))[:-1]]
    for a, b in zip(lines, words, strict=True):
        assert b.pop("words") is not None
        assert a == pytest.approx(b)
    assert CliRunner().invoke(main, ["score", str(model.path), "--ppl", "--tokens"]).exit_code == 2


def test_the_filter_command(model: snm.LanguageModel, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = CliRunner().invoke(main, ["filter", str(model.path), str(text), "-o", str(out), "--keep", "30%"])
    assert made.exit_code == 0, made.output
    assert "kept               14  (25.45%)" in made.stdout
    wrong = CliRunner().invoke(main, ["filter", str(model.path), str(text), "-o", str(out), "--keep", "some"])
    assert "'some' is not a share" in wrong.output
    assert wrong.exit_code == 2


def test_a_missing_package_is_named(
    model: snm.LanguageModel, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, options in (
        ("pyarrow", {"format": "parquet", "keep": 0.5}), ("matplotlib", {"histogram": "h.png", "keep": 0.5}),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            patch.setitem(sys.modules, f"{package}.parquet", None)
            patch.setitem(sys.modules, f"{package}.figure", None)
            with pytest.raises(snm.errors.MissingExtra, match=package):
                filter_text(model, text, tmp_path / "out", **options)  # type: ignore[arg-type]


def test_standard_input_is_spooled(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO(gzip.compress(b"some text"))))
    monkeypatch.setattr(sys, "stdin", stream)
    with filtering._spooled("-", ignore) as path:
        assert Path(path).read_bytes() == b"some text"
    assert not Path(path).exists()
