"""Tokenizers: text to pieces and back, and models of every kind that have one."""

from __future__ import annotations

import io
import json
import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import snm
import snm.kenlm
from snm.cli.main import main
from snm.errors import FormatError, InputError, SettingsError
from snm.model import LanguageModel, StatefulModel
from snm.reference import tokenizers as reference
from snm.scoring.lines import score_block
from snm.storage import MANIFEST, sealed
from snm.text.encoding import encode_files
from snm.text.tokenizers import Bytes, Characters, Tokenizer, open_tokenizer

LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=40)
ODD = st.text(st.sampled_from("ab  ▁␉␋␌␍␛\t\v\f\rß漢🙂"), max_size=12)
SKIPS = "ngram(0..3) + skip(r=1..2, s=1, words=1..3)"
PACKAGES = {"sentencepiece": "sentencepiece", "bpe": "tokenizers", "words": "tokenizers"}
NAMES = ("characters", "bytes", *PACKAGES)


def train_sentencepiece(lines: list[str]) -> bytes:
    package = pytest.importorskip("sentencepiece", reason="needs the package sentencepiece")
    made = io.BytesIO()
    package.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=made, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    return made.getvalue()


def train_hugging_face(lines: list[str], by_bytes: bool) -> bytes:
    """Byte-level BPE, which knows everything; or whole words of a list, with a length that a network would want."""
    package = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    if by_bytes:
        made = package.Tokenizer(package.models.BPE())
        made.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = package.decoders.ByteLevel()
        alphabet = package.pre_tokenizers.ByteLevel.alphabet()
        trainer = package.trainers.BpeTrainer(vocab_size=300, show_progress=False, initial_alphabet=alphabet)
        made.train_from_iterator(lines, trainer)
    else:
        known = {word: i for i, word in enumerate(["[UNK]", *sorted({w for line in lines for w in line.split()})])}
        made = package.Tokenizer(package.models.WordLevel(known, unk_token="[UNK]"))
        made.pre_tokenizer = package.pre_tokenizers.WhitespaceSplit()
        made.enable_truncation(max_length=2)
        made.enable_padding()
    return bytes(made.to_str(), "utf-8")


@pytest.fixture(scope="module")
def lines(corpus_file: Path) -> list[str]:
    return corpus_file.read_text().split("\n")[:-1]


@pytest.fixture(scope="module")
def named(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The name or the file of a tokenizer. Without its package, the test is skipped."""
    folder = tmp_path_factory.mktemp("tokenizers")

    def find(name: str) -> str:
        if name not in PACKAGES:
            return name
        pytest.importorskip(PACKAGES[name], reason=f"needs the package {PACKAGES[name]}")
        path = folder / name
        if not path.exists():
            data = train_sentencepiece(lines) if name == "sentencepiece" else train_hugging_face(lines, name == "bpe")
            path.write_bytes(data)
        return str(path)

    return find


# ---------------------------------------------------------------------------------------------
# text to pieces and back


@pytest.mark.parametrize("kind", ["characters", "bytes"])
class TestPlain:
    @given(given=st.lists(LINES | ODD, max_size=6))
    def test_pieces_are_those_of_the_reference_and_text_comes_back(self, kind: str, given: list[str]) -> None:
        tokenizer: Tokenizer = Characters() if kind == "characters" else Bytes()
        slow = reference.characters if kind == "characters" else reference.byte_pieces
        divided = tokenizer.divide("".join(line + "\n" for line in given).encode()).decode().split("\n")
        assert divided.pop() == ""
        assert [[piece for piece in line.split(" ") if piece] for line in divided] == list(map(slow, given))
        for line in given:
            blank = not line.strip(" \t\v\f\r")
            assert tokenizer.join(tokenizer.pieces(line)) == ("" if blank else line.removesuffix("\r"))

    def test_an_empty_block(self, kind: str) -> None:
        tokenizer = open_tokenizer(kind)
        assert tokenizer is not None
        assert tokenizer.divide(b"") == b""
        assert tokenizer.join([]) == ""


def test_bytes_have_256_different_pieces_and_all_can_be_joined() -> None:
    assert Bytes.alphabet is not None
    assert len(set(Bytes.alphabet)) == 256
    every = bytes(range(256))
    assert Bytes().join(Bytes.alphabet) == every.decode(errors="replace")
    assert not any(piece.isspace() for piece in Bytes.alphabet)


def test_sentencepiece_divides_and_joins_as_the_package_does(named: Callable[[str], str], lines: list[str]) -> None:
    path = named("sentencepiece")
    import sentencepiece

    real, tokenizer = sentencepiece.SentencePieceProcessor(model_file=path), open_tokenizer(path)
    assert tokenizer is not None
    for line in (*lines[:20], "unknown ☃ and 漢字 x"):
        assert tokenizer.pieces(line) == real.encode(line, out_type=str)
        assert tokenizer.join(tokenizer.pieces(line)) == line
    block = "".join(line + "\n" for line in [*lines, "", "  ", "a"]).encode()
    divided = tokenizer.divide(block, threads=2).decode().split("\n")[:-1]
    assert [line.split() for line in divided] == [
        *(real.encode(line, out_type=str) for line in lines),
        [],
        [],
        real.encode("a", out_type=str),
    ]


def test_a_tokenizer_of_hugging_face_divides_and_joins_as_the_package_does(named: Callable[[str], str]) -> None:
    path = named("bpe")
    import tokenizers

    real, tokenizer = tokenizers.Tokenizer.from_file(path), open_tokenizer(path)
    assert tokenizer is not None
    for line in ("the cat sees fish", " two  spaces", "tab\tand 漢字 ☃ ▁ ␉ ␛"):
        assert tokenizer.pieces(line) == real.encode(line).tokens
        assert tokenizer.join(tokenizer.pieces(line)) == line


def test_what_a_tokenizer_does_not_know_stays_as_it_is_and_its_longest_text_is_ignored(
    named: Callable[[str], str],
) -> None:
    tokenizer = open_tokenizer(named("words"))
    assert tokenizer is not None
    assert tokenizer.pieces("the purple cat sees [UNK] fish") == ["the", "purple", "cat", "sees", "[UNK]", "fish"]


def test_white_space_inside_of_pieces_is_visible_and_comes_back() -> None:
    package = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    pieces = ["a", " ", "\t", "b", "a ", "a b", "␉", "␠", "␛", " \t"]
    made = package.Tokenizer(package.models.Unigram([(piece, -1.0) for piece in pieces], 0, False))
    made.decoder = package.decoders.Fuse()
    tokenizer = open_tokenizer_of(made.to_str().encode())
    line = "a b\tb ␉ ␠␛ \tb"
    found = tokenizer.pieces(line)
    assert not any(character in piece for piece in found for character in " \t")
    assert tokenizer.join(found) == line


def open_tokenizer_of(data: bytes) -> Tokenizer:
    from snm.text.tokenizers import HuggingFace

    return HuggingFace(data)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("text", b"some text\n", "no model of SentencePiece"),
        ("empty", b"", "0 bytes"),
        ("cut.json", b'{"version": "1.0", "trunc', "none of Hugging Face"),
        ("other.json", b'{"a": 1}', "none of Hugging Face"),
        ("latin1.json", b'{"\xe4": 1}', "none of Hugging Face"),
    ],
)
def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    for package in set(PACKAGES.values()):
        pytest.importorskip(package, reason=f"needs the package {package}")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        snm.Settings(tokenizer=tmp_path / name)
    assert "\n" not in str(caught.value)
    assert "expected characters, bytes" in str(caught.value)


@pytest.mark.parametrize("wrong", ["no-such-file", ".", 3, "", "x\0y"])
def test_no_tokenizer_of_that_name(wrong: Any) -> None:
    with pytest.raises((InputError, SettingsError), match="expected characters, bytes"):
        snm.Settings(tokenizer=wrong)


# ---------------------------------------------------------------------------------------------
# models


def settings_of(kind: str, tokenizer: str, **more: Any) -> snm.Settings:
    how: dict[str, Any] = {"features": SKIPS, "gate": 8} if kind == "snm" else {"model": kind, "order": 4}
    return snm.Settings(tokenizer=tokenizer, min_count=1, threads=1, engine="cpu", **how, **more)


KINDS = ("snm", "kn", "katz", "sbo")
CASES = [*(("snm", name) for name in NAMES), *((kind, "characters") for kind in KINDS[1:]), ("kn", "sentencepiece")]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_model_of_any_kind_applies_its_tokenizer(
    named: Callable[[str], str], corpus_file: Path, tmp_path: Path, kind: str, name: str
) -> None:
    model = snm.train(corpus_file, tmp_path / "m", settings_of(kind, named(name)))
    check_model(model, corpus_file)
    model.close()
    again = snm.load(tmp_path / "m")
    assert again.vocabulary.tokenizer == open_tokenizer(named(name))
    check_model(again, corpus_file)


def check_model(model: LanguageModel, corpus_file: Path) -> None:
    """Text is divided wherever it comes in: as files, strings, and lines of a block; given pieces are not."""
    tokenizer = model.vocabulary.tokenizer
    assert tokenizer is not None
    sentence = "the old man sees a ☃ cat"
    pieces = tokenizer.pieces(sentence)
    (scored,) = model.score_words([sentence])
    assert [word for word, _ in scored] == [*pieces, "</S>"]
    assert model.score(pieces) == pytest.approx(model.score(sentence))
    ids = model.vocabulary.ids_of(pieces)
    assert model.context(sentence).tolist() == [0, *ids.tolist()]
    lines = corpus_file.read_text().split("\n")[:50]
    report = model.perplexity(lines)
    assert report.words == sum(len(line.split()) + 1 for line in lines)
    assert report.bytes == sum(len(word.encode()) + 1 for line in lines for word in line.split())
    assert report.tokens == sum(len(tokenizer.pieces(line)) + 1 for line in lines)
    assert report.ppl_word is not None
    assert report.bits_per_byte is not None
    assert math.log2(report.ppl_word) * report.words == pytest.approx(report.bits_per_byte * report.bytes)
    given = model.perplexity([tokenizer.pieces(line) for line in lines])
    assert (given.tokens, given.words, given.bytes) == (report.tokens, report.words, report.bytes)
    assert given.logprob10 == pytest.approx(report.logprob10)
    scores = score_block(model, "".join(f"{line}\n" for line in (*lines, "", " ")).encode(), spelled=False)
    if not model.vocabulary.document:
        assert np.nansum(scores.logprob10) == pytest.approx(report.logprob10)
    assert np.isnan(scores.logprob10[-2:]).all()
    file_report = model.perplexity(corpus_file)
    assert file_report.words == sum(len(line.split()) + 1 for line in corpus_file.read_text().split("\n")[:-1])
    snm.verify(model.path, contexts=20)
    text = model.generate("the old man", seed=1, max_words=20)
    assert text.startswith("the old man")
    assert model.next_words("the old man ", k=1)[0][0] in model.vocabulary.ids
    assert pickle.loads(pickle.dumps(model)) == model
    if isinstance(model, StatefulModel):
        state, total = model.start(), 0.0
        for piece in (*pieces, "</S>"):
            log10_p, state = model.step(state, piece)
            total += log10_p if not math.isnan(log10_p) else 0.0
        assert total == pytest.approx(model.score(sentence), rel=1e-4)


def test_a_gated_mixture_and_folds(corpus_file: Path, tmp_path: Path) -> None:
    snm.train(corpus_file, tmp_path / "a", settings_of("snm", "characters", folds=2))
    snm.train(corpus_file, tmp_path / "b", settings_of("kn", "characters"))
    hybrid = snm.mix_gated([tmp_path / "a", tmp_path / "b"], corpus_file, tmp_path / "hybrid", units=4)
    check_model(hybrid, corpus_file)
    snm.train(corpus_file, tmp_path / "c", settings_of("kn", "bytes"))
    with pytest.raises(SettingsError, match="c has the tokenizer bytes"):
        snm.mix_gated([tmp_path / "a", tmp_path / "c"], corpus_file, tmp_path / "other")


def test_fields_and_a_tokenizer_exclude_each_other(corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="fields and a tokenizer exclude each other"):
        snm.Settings(fields="speaker", tokenizer="characters")
    model = snm.train(iter(["a\x01b"] * 40), tmp_path / "m", settings_of("kn", "characters"))
    assert model.vocabulary.fields == ()
    assert [word for word, _ in model.score_words(["\x01a"])[0]] == ["\x01", "a", "</S>"]


def test_generated_text_of_characters_is_exact(corpus_file: Path, tmp_path: Path) -> None:
    model = snm.train(corpus_file, tmp_path / "m", settings_of("snm", "characters"))
    text = model.generate(seed=1, max_words=40)
    known = {word for line in corpus_file.read_text().split("\n") for word in line.split(" ")}
    assert len(set(text.split(" ")) & known) >= 2, text
    assert "▁" not in text


def test_a_tokenizer_and_white_space_have_the_same_bytes_and_words(corpus_file: Path, tmp_path: Path) -> None:
    reports = [
        snm.train(corpus_file, tmp_path / name, settings_of("kn", name)).perplexity(corpus_file)
        for name in ("whitespace", "characters", "bytes")
    ]
    assert len({(report.words, report.bytes) for report in reports}) == 1
    assert reports[0].words == reports[0].tokens < reports[1].tokens == reports[2].tokens
    assert reports[0].ppl_word == pytest.approx(reports[0].ppl_spelled)


def test_no_text_has_words_that_bytes_lack(corpus_file: Path, tmp_path: Path) -> None:
    model = snm.train(corpus_file, tmp_path / "m", settings_of("snm", "bytes"))
    report = model.perplexity(["漢字 and ☃, which the text lacks"])
    assert report.oov == 0
    assert report.bits_per_byte is not None
    assert math.isfinite(report.bits_per_byte)
    assert len(model.vocabulary) == 256 + 3
    assert snm.verify(tmp_path / "m", iter(["漢字 ☃"]), contexts=20).worst < 1e-5


def test_documents_mixtures_sources_adaptation_and_pruning(corpus_file: Path, tmp_path: Path) -> None:
    whole = snm.train(corpus_file, tmp_path / "a", settings_of("snm", "characters"))
    other = snm.train(corpus_file, tmp_path / "b", settings_of("kn", "characters", max_words=10))
    mixed = snm.mix([tmp_path / "a", tmp_path / "b"], iter(["the old man sees a dog"]), tmp_path / "mixed")
    assert len(other.vocabulary) < len(whole.vocabulary)
    check_model(mixed, corpus_file)
    how = settings_of("snm", "characters", document=True)
    check_model(snm.train(corpus_file, tmp_path / "documents", how), corpus_file)
    texts = {"one": corpus_file, "two": corpus_file}
    joined = snm.train(texts, tmp_path / "sources", settings_of("snm", "characters"), dev=corpus_file)
    check_model(joined, corpus_file)
    new = iter(["une phrase à apprendre"] * 30)
    adapted = snm.adapt(whole, tmp_path / "adapted", text=new, name="new", threads=1)
    assert "à" in adapted.vocabulary.ids
    assert adapted.vocabulary.tokenizer == whole.vocabulary.tokenizer
    assert snm.adapt(whole, tmp_path / "gated", dev=corpus_file).vocabulary == whole.vocabulary
    smaller = snm.prune(whole, tmp_path / "smaller", links=whole.manifest["links"] // 2, dev=corpus_file)
    check_model(smaller, corpus_file)


def test_counts_have_a_tokenizer(corpus_file: Path, tmp_path: Path) -> None:
    words = tmp_path / "words"
    snm.write_vocabulary(corpus_file, words, min_count=1, tokenizer="characters")
    assert "▁" in words.read_text().split("\n")
    how: dict[str, Any] = {"features": SKIPS, "vocab": words, "threads": 1}
    snm.count_text(corpus_file, tmp_path / "one", snm.Settings(tokenizer="characters", **how))
    merged = snm.merge_counts([tmp_path / "one", tmp_path / "one"], tmp_path / "two", threads=1)
    assert merged.vocabulary.tokenizer == Characters()
    model = snm.train(None, tmp_path / "m", snm.Settings(threads=1, gate=0), counts=tmp_path / "two")
    check_model(model, corpus_file)
    snm.count_text(corpus_file, tmp_path / "other", snm.Settings(**how))
    with pytest.raises(SettingsError, match=r"other has the tokenizer whitespace, .*one characters"):
        snm.merge_counts([tmp_path / "one", tmp_path / "other"], tmp_path / "three")
    with pytest.raises(SettingsError, match=r"the training has the tokenizer bytes, .*one characters"):
        snm.train(None, tmp_path / "n", snm.Settings(tokenizer="bytes"), counts=tmp_path / "one")
    snm.count_text(corpus_file, tmp_path / "bytes", snm.Settings(tokenizer="bytes", features="snm2", threads=1))
    assert snm.train(None, tmp_path / "b", snm.Settings(threads=1), counts=tmp_path / "bytes").vocabulary.closed


def test_threads_and_a_given_vocabulary_make_the_same_tokens(corpus_file: Path, tmp_path: Path) -> None:
    models = [
        snm.train(corpus_file, tmp_path / f"m{n}", snm.Settings(model="kn", tokenizer="characters", threads=n))
        for n in (1, 2)
    ]
    assert models[0].vocabulary == models[1].vocabulary
    words = tmp_path / "words"
    words.write_text("".join(f"{word}\n" for word in models[0].vocabulary.words[3:]))
    given = snm.train(corpus_file, tmp_path / "given", snm.Settings(model="kn", tokenizer="characters", vocab=words))
    assert given.vocabulary == models[0].vocabulary
    assert given.score("the cat") == pytest.approx(models[0].score("the cat"))


def test_a_training_is_resumed_with_the_same_tokenizer_alone(corpus_file: Path, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(message: str) -> None:
        if "of vocabulary" in message:
            raise Stopped

    how = settings_of("snm", "characters", resume=True)
    with pytest.raises(Stopped):
        snm.train(corpus_file, tmp_path / "m", how, notify=stop)
    with pytest.raises(SettingsError, match="tokenizer was"):
        snm.train(corpus_file, tmp_path / "m", settings_of("snm", "whitespace", resume=True))
    resumed = snm.train(corpus_file, tmp_path / "m", how)
    whole = snm.train(corpus_file, tmp_path / "whole", settings_of("snm", "characters"))
    assert resumed.vocabulary == whole.vocabulary
    assert resumed.score("the cat") == whole.score("the cat")


def test_models_of_different_tokenizers_are_not_mixed(corpus_file: Path, tmp_path: Path) -> None:
    for name in ("characters", "bytes", "whitespace"):
        snm.train(corpus_file, tmp_path / name, snm.Settings(model="sbo", tokenizer=name))
    for other in ("bytes", "whitespace"):
        with pytest.raises(SettingsError, match=f"{other} has the tokenizer {other}, .*characters characters"):
            snm.mix([tmp_path / "characters", tmp_path / other], corpus_file, tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()


@pytest.mark.parametrize("model", ["hsme", "rnn"])
def test_neural_models(corpus_file: Path, tmp_path: Path, model: str) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    network = snm.NetworkSettings(passes=1, hidden=8, checkpoint=0)
    how = snm.Settings(model=model, network=network, tokenizer="characters", order=3, threads=1)
    made = snm.train(corpus_file, tmp_path / "m", how)
    check_model(made, corpus_file)


# ---------------------------------------------------------------------------------------------
# folders and commands


def damaged(path: Path, entry: Any) -> Path:
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["tokenizer"] = entry
    (path / MANIFEST).write_bytes(sealed(manifest))
    return path


def test_the_fingerprint_is_checked_when_a_model_is_opened(
    named: Callable[[str], str], corpus_file: Path, tmp_path: Path
) -> None:
    model = snm.train(corpus_file, tmp_path / "m", settings_of("kn", named("sentencepiece")))
    entry = model.manifest["tokenizer"]
    assert model.manifest["requires"] == ["tokenizer"]
    assert (tmp_path / "m" / "tokenizer.model").read_bytes() == Path(named("sentencepiece")).read_bytes()
    other = shutil.copytree(tmp_path / "m", tmp_path / "other")
    data = bytearray((other / "tokenizer.model").read_bytes())
    data[40] ^= 1
    (other / "tokenizer.model").write_bytes(data)
    with pytest.raises(FormatError, match="its checksum differs"):
        snm.load(other)
    for wrong in ({**entry, "kind": "nothing"}, {**entry, "kind": "huggingface"}, {"kind": "bytes"}, 3, None):
        with pytest.raises(FormatError) as caught:
            snm.load(damaged(other, wrong))
        assert "\n" not in str(caught.value)


def test_an_absent_package_is_named(
    named: Callable[[str], str], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name, package in (("sentencepiece", "sentencepiece"), ("bpe", "tokenizers")):
        path = named(name)
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(snm.errors.MissingExtra, match=f"pip install {package}"):
            snm.train(corpus_file, tmp_path / "m", settings_of("kn", path))


def run(*arguments: object, text: str | None = None) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=text)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_commands(corpus_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "m"
    run("train", corpus_file, "-o", path, "--tokenizer", "characters", "--features", SKIPS, "--quiet", "--threads", 1)
    assert "characters" in run("info", path)
    report = json.loads(run("ppl", path, corpus_file, "--json"))
    assert report["words"] < report["tokens"]
    assert report["ppl"] < report["ppl_word"]
    assert "  a word" in run("ppl", path, corpus_file)
    assert "a word" not in run("ppl", snm.train(corpus_file, tmp_path / "w").path, corpus_file)
    assert run("score", path, "--tokens", text="the cat\n").split("\t")[4][0] == "▁"
    assert len(run("score", path, text="the cat\n\n").split("\n")) == 3
    assert json.loads(run("next", path, "the", "ol", "-k", 1, "--json"))[0]["word"] == "d"
    assert "'e'" in run("explain", path, "the") or "e  P" in run("explain", path, "the")
    lines = tmp_path / "lines.txt"
    lines.write_text("the cat sees fish\nqqq zzz xxx\nthe old man likes cake\n")
    kept = tmp_path / "kept.txt"
    run("filter", path, lines, "-o", kept, "--keep", "67%")
    assert kept.read_text() == "the cat sees fish\nthe old man likes cake\n"
    result = CliRunner().invoke(main, ["train", str(corpus_file), "-o", "x", "--tokenizer", "bytes", "--closed"])
    assert result.exit_code == 2
    assert "--closed would have no effect" in result.output
    words = tmp_path / "words"
    run("vocab", corpus_file, "-o", words, "--tokenizer", "characters")
    run("count", corpus_file, "--vocab", words, "--tokenizer", "characters", "-o", tmp_path / "counts", "--quiet")
    run("train", "--counts", tmp_path / "counts", "-o", tmp_path / "n", "--quiet")
    assert snm.load(tmp_path / "n").vocabulary == snm.load(path).vocabulary


def test_kenlm_sentences_are_divided_and_its_words_are_pieces(corpus_file: Path, tmp_path: Path) -> None:
    model = snm.train(corpus_file, tmp_path / "m", settings_of("snm", "characters"))
    asked = snm.kenlm.Model(str(tmp_path / "m"))
    assert asked.score("the cat") == pytest.approx(model.score("the cat"), rel=1e-4)
    assert [oov for *_, oov in asked.full_scores("a ☃")] == [False, False, True, False]
    assert asked.perplexity("cat") == pytest.approx(10 ** (-model.score("cat") / 4), rel=1e-4)
    assert "c" in asked
    assert "cat" not in asked


def test_the_server_divides_text(corpus_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the package fastapi")
    from snm.server import answers, prompts, requests
    from snm.server.limits import Refusal

    model = snm.train(corpus_file, tmp_path / "m", settings_of("snm", "characters"))
    ((best,),) = answers.next_words(model, requests.NextRequest(texts=["a\nthe ol"], k=1))
    assert best[0]["word"] == "d"
    (((scored,),)) = answers.scores(model, requests.ScoreRequest(texts=["the cat"], words=True))
    assert "".join(word["word"] for word in scored["words"]) == "the▁cat</S>"
    ((explained,),) = answers.explanations(model, requests.ExplainRequest(texts=["cat"]))
    assert [part["word"] for part in explained] == ["c", "a", "t", "</S>"]
    report = answers.perplexity(model, requests.PerplexityRequest(text="the cat\n\na dog", sentences=True))
    assert [line["tokens"] for line in report["results"]] == [8, 6]
    rows = [
        row for rows in answers.generated(model, requests.GenerateRequest(prompt="the old", seed=1)) for row in rows
    ]
    assert rows[0].startswith("the old")
    with pytest.raises(Refusal, match="it has a tokenizer"):
        prompts.prompt_of_text("the cat", model.vocabulary)


def test_an_arpa_file_has_the_pieces(corpus_file: Path, tmp_path: Path) -> None:
    model = snm.train(corpus_file, tmp_path / "m", settings_of("kn", "characters"))
    snm.export_arpa(model, tmp_path / "arpa")
    again = snm.import_arpa(tmp_path / "arpa", tmp_path / "again")
    assert again.vocabulary.tokenizer is None
    assert again.score("t h e ▁ c a t") == pytest.approx(model.score("the cat"), rel=1e-4)
    snm.export_arpa(
        snm.train(corpus_file, tmp_path / "b", settings_of("sbo", "bytes")), tmp_path / "p", text=corpus_file
    )


def test_text_is_encoded_alike_from_files_and_sentences(corpus_file: Path, tmp_path: Path) -> None:
    model = snm.train(corpus_file, tmp_path / "m", settings_of("kn", "characters"))
    lines = corpus_file.read_text().split("\n")[:-1]
    of_file = encode_files([corpus_file], model.vocabulary)
    mixed = [line if i % 3 else Characters().pieces(line) for i, line in enumerate(lines)]
    of_sentences = encode_files(iter(mixed), model.vocabulary)
    assert np.array_equal(of_file.tokens, of_sentences.tokens)
    assert (of_file.words, of_file.bytes) == (of_sentences.words, of_sentences.bytes)
    bad = tmp_path / "bad"
    bad.write_bytes(b"the cat\nthe \xff\nthe dog\n")
    assert encode_files([bad], model.vocabulary, on_error="skip-line").sentences == 2
    with pytest.raises(InputError, match="line 2"):
        encode_files([bad], model.vocabulary)
