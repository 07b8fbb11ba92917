"""The edge of reading: bad bytes, endless lines, compressed files that are larger than memory, too many words."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import snm
from snm.baselines.backoff.arpa import import_arpa
from snm.cli.main import main
from snm.errors import FormatError, InputError, SettingsError
from snm.mixing import read_probabilities
from snm.preparing import check_vocabulary
from snm.settings import MIN_MEMORY, Settings
from snm.text import encoding, files
from snm.text.encoding import encode_files, read_corpus, read_vocabulary
from snm.text.files import ON_ERROR, BadLines, find_files, open_text, read_blocks, read_lines
from snm.text.sampling import draw_sentences
from snm.text.vocabulary import Vocabulary, split_words
from tests.conftest import text_of, train
from tests.test_cli import fails, ok, run

GOLDEN = Path(__file__).parent / "golden"
MODEL, SNM, MIXTURE = (GOLDEN / "format3" / name for name in ("backoff", "snm", "mixture"))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}
BAD = b"good one\nbad \xe9 one\nNUL \0 here\n\ngood two\nhalf a letter \xc3\ngood three"
COMMANDS = [(), ("--on-error", "replace"), ("--on-error", "skip-line")]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def sentences_of(source: Path, on_error: str, threads: int = 1) -> tuple[list[str], int]:
    """The sentences of a text as they are encoded, and the number of bad lines."""
    text, vocabulary = read_corpus(source, min_count=1, threads=threads, on_error=on_error)
    assert np.array_equal(encode_files(source, vocabulary, on_error=on_error).tokens, text.tokens)
    words = [vocabulary.words[token] for token in text.tokens]
    found = " ".join(words).removeprefix("<S> ").removesuffix(" </S>").split(" </S> <S> ")
    assert len(found) == text.sentences
    return found, text.bad_lines


class TestBadLines:
    def test_a_bad_line_is_an_error_that_names_the_way_out(self, tmp_path: Path) -> None:
        for data, what in ((b"fine\na \0 b\n", "a NUL byte"), (b"fine\ncaf\xe9\n", "invalid UTF-8 (byte 0xe9)")):
            path = write(tmp_path / "text", data)
            message = fails("ppl", MODEL, path)
            assert f"{path}, line 2: {what}; leave out such lines with --on-error skip-line" in message
            assert message.index("--on-error") < message.index("iconv")

    @pytest.mark.parametrize("block", [1, 3, 10, 1 << 20])
    @pytest.mark.parametrize("threads", [1, 2])
    def test_lines_are_repaired_or_left_out(
        self, block: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "BLOCK", block)
        path = write(tmp_path / "text", BAD)
        repaired = ["good one", "bad � one", "NUL � here", "good two", "half a letter �", "good three"]
        assert sentences_of(path, "replace", threads) == (repaired, 3)
        assert sentences_of(path, "skip-line", threads) == (["good one", "good two", "good three"], 3)

    @pytest.mark.parametrize("block", [1, 3, 1 << 20])
    def test_a_line_left_out_stays_as_a_blank_line_where_lines_are_scored(
        self, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "BLOCK", block)
        bad = BadLines("skip-line")
        lines = [line for some in read_lines(write(tmp_path / "text", BAD), bad) for line in some]
        assert lines == ["good one", "", "", "", "good two", "", "good three"]
        assert bad.count == 3

    def test_a_line_left_out_does_not_end_a_document(self, tmp_path: Path) -> None:
        path = write(tmp_path / "text", b"a\n\xff\nb\n\nc\n")
        text = encode_files(path, Vocabulary(["a", "b", "c"], document=True), on_error="skip-line")
        assert (text.documents, text.sentences) == (2, 3)

    @given(st.lists(st.sampled_from([b"a", b" ", b"\n", b"\xc3", b"\xa9", b"\0", b"\xff", b"\r"]), max_size=40))
    def test_any_bytes_become_valid_lines(self, tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
        path = write(tmp_path_factory.mktemp("bytes") / "text", b"".join(parts))
        wanted = b"".join(parts).decode(errors="replace").replace("\0", "�").split("\n")
        for block in (2, 1 << 20):
            blocks = b"".join(_blocks_of(path, "replace", block))
            assert [split_words(line) for line in blocks.decode().split("\n") if line] == [
                split_words(line) for line in wanted if line
            ]
            kept = b"".join(_blocks_of(path, "skip-line", block)).decode().split("\n")
            assert [split_words(line) for line in kept if line] == [
                split_words(line) for line in wanted if line and "�" not in line
            ]

    def test_a_long_bad_line_is_counted_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "BLOCK", 8)
        path = write(tmp_path / "text", b"a \xff " * 20 + b"\n\xff\n")
        _, count = sentences_of(path, "replace")
        assert count == 2

    def test_every_command_takes_the_option(self, corpus_file: Path, tmp_path: Path) -> None:
        bad = write(tmp_path / "bad.txt", corpus_file.read_bytes() + b"the \0 cat\n")
        words = write(tmp_path / "words", b"cat\n\xff\nthe\n")
        how = "--on-error", "skip-line"
        model = tmp_path / "m"
        result = run("train", bad, "-o", model, "--order", "2", "--vocab", words, "--dev", bad, *how)
        assert result.exit_code == 0, result.output
        assert result.stderr.count("1 line with bytes that are not UTF-8, or NUL: left out") == 3
        assert snm.load(model).manifest["text"]["bad_lines"] == 1
        assert snm.load(model).vocabulary.words[3:] == ("cat", "the")
        report = json.loads(ok("ppl", model, bad, "--json", *how))
        assert (report["bad_lines"], report["sentences"]) == (1, 400)
        assert ok("score", model, bad, *how).split("\n")[-2:] == ["", ""]
        assert "left out" in run("score", model, bad, *how).stderr
        for command in (("verify", model, bad), ("mix", model, model, "--dev", bad)):
            assert "left out" in run(*command, *how).stderr
            assert "--on-error" in fails(*command)

    def test_the_choices_of_the_commands_are_those_of_python(self) -> None:
        for name in ("train", "ppl", "score", "verify", "mix"):
            (option,) = [p for p in main.commands[name].params if p.name == "on_error"]
            assert isinstance(option.type, click.Choice)
            assert tuple(option.type.choices) == ON_ERROR

    def test_python(self, tmp_path: Path) -> None:
        model = snm.load(MODEL)
        path = write(tmp_path / "text", b"the old stone\nthe \xff stone\n")
        expected = model.score("the old stone")
        for call in (model.score_sentences, model.perplexity):
            with pytest.raises(InputError, match="line 2"):
                call(path)
            with pytest.raises(SettingsError, match="on_error"):
                call(path, on_error="ignore")
        assert model.score_sentences(path, on_error="skip-line") == pytest.approx([expected, np.nan], nan_ok=True)
        assert model.score_sentences(path, on_error="replace")[1] == model.score("the � stone")
        report = model.perplexity(path, on_error="skip-line")
        assert (report.sentences, report.bad_lines) == (1, 1)

    def test_sentences_given_in_python_are_repaired_too(self) -> None:
        lines = ["good one", "NUL \0 here", "\ud800", "good two"]
        for on_error, kept in (("replace", 4), ("skip-line", 2)):
            text, _ = read_corpus(iter(lines), min_count=1, on_error=on_error)
            assert (text.sentences, text.bad_lines) == (kept, 2)


def _blocks_of(path: Path, on_error: str, block: int) -> Iterator[bytes]:
    before, files.BLOCK = files.BLOCK, block
    try:
        yield from read_blocks([str(path)], BadLines(on_error))
    finally:
        files.BLOCK = before


class TestEncodings:
    @pytest.mark.parametrize("how", COMMANDS)
    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
    def test_utf16_is_named(self, how: tuple[str, ...], encoding: str, tmp_path: Path) -> None:
        data = "one two\n".encode(encoding)
        data = data if data[0] >= 0xFE else b"\xfe\xff" + data
        assert "is UTF-16; expected UTF-8" in fails("ppl", MODEL, write(tmp_path / "text", data), *how)

    def test_only_ascii_white_space_separates_words_and_only_newlines_separate_lines(self, tmp_path: Path) -> None:
        path = write(tmp_path / "text", "a\u2028b c\x85d\u00a0e\rf\x0bg\x0ch\r\ni\n".encode())
        assert sentences_of(path, "fail")[0] == ["a\u2028b c\x85d\u00a0e f g h", "i"]

    def test_every_file_may_have_a_byte_order_mark(self, tmp_path: Path) -> None:
        for name in ("1", "2"):
            write(tmp_path / name, b"\xef\xbb\xbfword\n")
        assert sentences_of(tmp_path, "fail")[0] == ["word", "word"]
        (path := tmp_path / "arpa").write_bytes(b"\xef\xbb\xbf" + (MODEL.parents[1] / "kneser-ney.arpa").read_bytes())
        assert len(import_arpa(path, tmp_path / "m").targets) > 100


class TestLongLines:
    @pytest.mark.parametrize("block", [1, 7, 100])
    @pytest.mark.parametrize("threads", [1, 3])
    def test_a_line_longer_than_a_block_is_one_sentence(
        self, block: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = [" ".join(f"w{i % 7}" for i in range(n)) for n in (3, 60, 0, 200, 1, 100)]
        lines[3] = " " * 300 + "<s> " * 40 + lines[3] + " </s>" * 50 + " " * 300
        lines += ["x" * 30, " " * 400, "the end"]
        for ending in ("\n", ""):
            path = write(tmp_path / "text", ("\n".join(lines) + ending).encode())
            monkeypatch.setattr(files, "BLOCK", block)
            assert sentences_of(path, "fail", threads)[0] == [
                " ".join(words) for line in lines if (words := split_words(line))
            ]
            monkeypatch.undo()

    def test_a_block_is_lines_or_a_part_of_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "BLOCK", 16)
        path = write(tmp_path / "text", b"a b\n" + b"word " * 30 + b"\nc\nd\n")
        blocks = list(read_blocks([str(path)], BadLines()))
        assert b"".join(blocks) == path.read_bytes() + b"\n"
        assert all(block[-1:] in b" \n" for block in blocks)
        assert all(block.count(b"\n") == 1 for block in blocks[1:8] if block.endswith(b"\n"))
        assert max(map(len, blocks)) < 40

    @pytest.mark.parametrize("how", COMMANDS)
    def test_a_word_without_end_is_refused(self, how: tuple[str, ...], tmp_path: Path) -> None:
        path = write(tmp_path / "text", b"one\n" + b"x" * (files.MAX_WORD + 1) + b" two\n")
        assert f"{path}, line 2: a word of more than 1,048,576 bytes" in fails("ppl", MODEL, path, *how)
        shorter = write(tmp_path / "text", b"one\n" + b"x" * files.MAX_WORD + b" two\n")
        assert encode_files(shorter, Vocabulary(["two"])).events == 5

    @pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
    def test_endless_input_is_refused_at_once(self, tmp_path: Path) -> None:
        for command in (
            ("train", "/dev/zero", "-o", tmp_path / "m"),
            ("train", "/dev/zero", "-o", tmp_path / "m", "--on-error", "skip-line"),
            ("train", tmp_path, "-o", tmp_path / "m", "--vocab", "/dev/zero"),
            ("import", "/dev/zero", "-o", tmp_path / "m"),
            ("score", MODEL, "/dev/zero"),
            ("ppl", MODEL, "/dev/zero"),
            ("filter", MODEL, "/dev/zero", "--max-ppl", "9", "-o", tmp_path / "kept", "--format", "jsonl"),
            ("rescore", MODEL, "/dev/zero"),
            ("rescore", MODEL, "/dev/zero", "--format", "lattice"),
            ("rescore", MODEL, tmp_path / "lattice", "--format", "lattice", "--symbols", "/dev/zero"),
            ("rescore", MODEL, tmp_path / "nbest", "--reference", "/dev/zero"),
            ("export", MODEL, tmp_path / "arpa", "--nemo", "/dev/zero"),
        ):
            write(tmp_path / "text", b"a b\n")
            write(tmp_path / "lattice", b"0 1 1 1 0.5\n1\n")
            write(tmp_path / "nbest", b'{"id": "a", "nbest": [{"text": "the"}]}\n')
            assert " bytes; expected text, " in fails(*command), command
        assert not {"m", "kept", "arpa"} & {path.name for path in tmp_path.iterdir()}

    def test_a_million_words_on_a_line(self, tmp_path: Path) -> None:
        path = write(tmp_path / "text", b"the river " * 500_000 + b"\n")
        found = json.loads(ok("ppl", MODEL, path, "--json"))
        assert (found["sentences"], found["tokens"], found["oov"]) == (1, 1_000_001, 0)
        (line,) = ok("score", MODEL, path).splitlines()
        assert float(line) == pytest.approx(found["logprob10"], rel=1e-5)
        ok("train", path, "-o", tmp_path / "m", "--model", "kn", "--order", "3", "--threads", "1")
        assert snm.load(tmp_path / "m").manifest["text"] == {
            "sentences": 1, "tokens": 1_000_001, "oov": 0, "bad_lines": 0,
        }  # fmt: skip

    def test_a_line_that_is_needed_as_a_whole_has_a_largest_length(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "MAX_LINE", 1000)
        monkeypatch.setattr(files, "BLOCK", 100)
        path = write(tmp_path / "text", b"one\n" + b"word " * 300)
        with pytest.raises(InputError, match="line 2: a line of more than 1,000 bytes"):
            list(read_lines(path))
        with pytest.raises(InputError, match="line 2: a line of more than 1,000 bytes"):
            encode_files(path, Vocabulary(["word"]), on_error="skip-line")
        assert encode_files(path, Vocabulary(["word"]), on_error="replace").events == 303

    def test_samples_of_a_text_with_a_long_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(encoding, "PIECE", 10)
        text = text_of([[3] * n for n in (2, 95, 1, 4)])
        pieces = [piece for piece, _ in draw_sentences(text, 20, 1)]
        assert [(p.start, p.stop) for p in pieces] == [(0, 101), (101, 110)]


class TestCompressed:
    @pytest.mark.parametrize("kind", PACK)
    def test_little_is_decompressed_at_a_time(self, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """30 MB of zeros take some bytes; memory must not depend on what they become."""
        path = write(tmp_path / "bomb", PACK[kind](bytes(30_000_000)))
        monkeypatch.setattr(files, "PACKED_BLOCK", 64)  # of zst, 64 bytes become 2 MB
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match="a word of more than"):
                read_corpus(path)
            assert tracemalloc.get_traced_memory()[1] < 24_000_000
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("kind", PACK)
    def test_what_follows_the_compressed_data_is_an_error(self, kind: str, tmp_path: Path) -> None:
        packed = PACK[kind](b"one two\n")
        with pytest.raises(InputError, match="cannot read"):
            read_corpus(write(tmp_path / "text", packed + b"three four\n"))

    @pytest.mark.parametrize("kind", PACK)
    def test_streams_one_after_another_are_one_text(self, kind: str, tmp_path: Path) -> None:
        packed = [PACK[kind](b"one %d\n" % i) for i in range(300)]
        text, _ = read_corpus(write(tmp_path / "text", b"".join(packed)), min_count=1)
        assert text.sentences == 300
        padded = write(tmp_path / "text", packed[0] + bytes(4) + packed[1] + bytes(8))
        assert read_corpus(padded, min_count=1)[0].sentences == 2

    @pytest.mark.parametrize("kind", PACK)
    def test_a_random_file_is_the_same_after_unpacking(self, kind: str, tmp_path: Path) -> None:
        data = np.random.default_rng(1).integers(0, 4, 1_500_000).astype(np.uint8).tobytes()
        with open_text(str(write(tmp_path / "x", PACK[kind](data)))) as stream:
            parts = iter(lambda: stream.read(700_001), b"")
            assert b"".join(parts) == data

    def test_an_xz_file_that_asks_for_much_memory_is_refused(self, tmp_path: Path) -> None:
        packed = bytearray(lzma.compress(b"a b\n"))
        end = 12 + 4 * packed[12]  # of the block's header, where its checksum is
        packed[packed.index(b"\x21\x01", 12) + 2] = 36  # the size of the dictionary: 1 GB
        packed[end : end + 4] = zlib.crc32(bytes(packed[12:end])).to_bytes(4, "little")
        with pytest.raises(InputError, match=r"[Mm]emory"):
            read_corpus(write(tmp_path / "text", bytes(packed)))

    @pytest.mark.parametrize("kind", PACK)
    def test_a_pipe_may_be_compressed(self, kind: str, tmp_path: Path) -> None:
        if not hasattr(os, "mkfifo"):
            pytest.skip("needs named pipes")
        os.mkfifo(path := tmp_path / "pipe")
        thread = threading.Thread(target=write, args=(path, PACK[kind](b"one two\nthree\n")))
        thread.start()
        assert [line for lines in read_lines(path) for line in lines] == ["one two", "three"]
        thread.join()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
class TestPipes:
    """A second read of a pipe would wait for ever."""

    @pytest.mark.parametrize(
        "command",
        [
            ["train", "a={pipe}", "b={text}", "--dev", "{text}", "-o", "{out}", "--order", "2"],
            ["export", SNM, "{out}", "--text", "{pipe}"],
            ["export", MIXTURE, "{out}", "--dev", "{pipe}"],
            ["plan", "{pipe}"],
            ["filter", MODEL, "{pipe}", "-o", "{out}", "--keep", "50%", "--resume"],
        ],
        ids=["sources", "text", "dev", "plan", "resume"],
    )
    def test_text_that_is_read_twice_is_no_pipe(self, command: list[object], tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        write(tmp_path / "text", b"the old stone\n")
        places = {name: str(tmp_path / name) for name in ("pipe", "text", "out")}
        line = fails(*[str(argument).format(**places) for argument in command])
        assert "can be read only once" in line or "resume needs a file" in line
        assert {path.name for path in tmp_path.iterdir()} == {"pipe", "text"}

    def test_a_pipe_is_kept_for_the_second_read(self, tmp_path: Path) -> None:
        text = (GOLDEN / "text.txt").read_bytes()
        os.mkfifo(pipe := tmp_path / "pipe")
        thread = threading.Thread(target=write, args=(pipe, text))
        thread.start()
        for name, source in (("a", pipe), ("b", write(tmp_path / "text", text))):
            ok("filter", MODEL, source, "-o", tmp_path / name, "--keep", "30%")
        thread.join()
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        assert 30 <= (tmp_path / "a").read_bytes().count(b"\n") <= 40


class TestManyWords:
    @pytest.mark.parametrize("threads", [1, 3])
    @pytest.mark.parametrize("document", [False, True])
    def test_a_table_of_words_that_does_not_fit_is_refused(self, threads: int, document: bool, tmp_path: Path) -> None:
        """With several threads, an error in one of them once left the others waiting for ever."""
        path = write(tmp_path / "text", b"".join(b"%d %d\n" % (i, -i) for i in range(60_000)))
        with pytest.raises(SettingsError, match=r"too many different words for --memory: .*; give more --memory"):
            read_corpus(path, threads=threads, documents=document, memory=4 << 20)
        with pytest.raises(SettingsError, match="too many different words"):
            read_vocabulary(write(tmp_path / "words", path.read_bytes().replace(b" ", b"\n")), memory=4 << 20)
        _, vocabulary = read_corpus(path, min_count=1, threads=threads, memory=256 << 20)
        assert len(vocabulary) == 119_999 + 3

    def test_long_words_fill_the_memory_too(self, tmp_path: Path) -> None:
        path = write(tmp_path / "text", b"".join(b"%d" % i + b"x" * 100_000 + b"\n" for i in range(60)))
        with pytest.raises(SettingsError, match="too many different words"):
            read_corpus(path, memory=4 << 20)

    @pytest.mark.parametrize("threads", [1, 2])
    def test_learning_words_takes_no_more_than_its_share(self, threads: int, tmp_path: Path) -> None:
        random = np.random.default_rng(3)
        lines = random.permutation([b"word%d word%d word%d\n" % (i, 2 * i, 3 * i) for i in range(40_000)]).tolist()
        path = write(tmp_path / "text", b"".join(lines))
        read_corpus(path, threads=threads)  # compiles kernels
        entries, pool = 1 << 18, 2 << 20  # of a table that has place for these words, and of their letters
        share = entries * encoding.ENTRY_BYTES + pool * encoding.POOL_COPIES
        tracemalloc.start()
        try:
            read_corpus(path, min_count=1, threads=threads, memory=threads * share)
            assert tracemalloc.get_traced_memory()[1] < threads * share + (24 << 20), "beside blocks and tokens"
        finally:
            tracemalloc.stop()

    @given(st.lists(st.text("ab€𝄞", min_size=1, max_size=20), min_size=1, max_size=60), st.integers(1, 3))
    def test_words_are_in_the_order_of_their_counts_and_characters(self, words: list[str], threads: int) -> None:
        _, vocabulary = read_corpus(iter(words), min_count=1, threads=threads)
        assert vocabulary.words[3:] == tuple(sorted(set(words), key=lambda word: (-words.count(word), word)))

    def test_words_with_long_common_beginnings_are_sorted(self) -> None:
        words = [f"{'x' * 5000}{i % 100:02}{'y' * (i // 100)}" for i in range(300)]
        _, vocabulary = read_corpus(iter(words), min_count=1, max_words=250)
        assert vocabulary.words[3:] == tuple(sorted(words)[:250])

    def test_a_vocabulary_that_does_not_fit_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = Settings(memory=MIN_MEMORY)
        check_vocabulary(settings, 1_000_000)
        check_vocabulary(Settings(memory=MIN_MEMORY, model="kn"), 10_000_000)
        with pytest.raises(
            SettingsError, match=r"10,000,000 words take about \d+ MB, more than their share of --memory"
        ):
            check_vocabulary(settings, 10_000_000)
        monkeypatch.setattr("snm.preparing.WORD_BYTES", 1 << 30)
        text, words = write(tmp_path / "text", b"a b\n"), write(tmp_path / "words", b"a\n")
        for how in (Settings(min_count=1), Settings(vocab=words)):
            with pytest.raises(SettingsError, match="give more --memory, or have fewer words"):
                train(text, tmp_path / "m", how)


class TestVocabularyFiles:
    @pytest.mark.parametrize("kind", PACK)
    def test_a_vocabulary_may_be_compressed(self, kind: str, tmp_path: Path) -> None:
        assert read_vocabulary(write(tmp_path / "v", PACK[kind](b"b\na\nb\n"))).words[3:] == ("b", "a")

    @pytest.mark.parametrize("block", [1, 4, 1 << 20])
    def test_several_words_in_a_line_are_refused(
        self, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "BLOCK", block)
        path = write(tmp_path / "v", b"one\n\n two  \nthree four\n")
        with pytest.raises(InputError, match=r"v, line 4: .*; expected a vocabulary, one word a line"):
            read_vocabulary(path)
        long = write(tmp_path / "v", b"x" * 100_000 + b" " + b"y" * 100_000)
        with pytest.raises(InputError) as caught:
            read_vocabulary(long)
        assert len(str(caught.value)) < 1000

    def test_a_folder_is_no_vocabulary(self, tmp_path: Path) -> None:
        write(tmp_path / "text", b"a\n")
        assert "cannot read" in fails("train", tmp_path / "text", "-o", tmp_path / "m", "--vocab", tmp_path)


class TestFolders:
    def test_a_folder_that_cannot_be_read_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It once counted as an empty one."""
        write(tmp_path / "text", b"a\n")
        (tmp_path / "secret").mkdir()
        scandir = os.scandir

        def refuse(path: Path) -> object:
            if Path(path).name == "secret":
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(path)

        monkeypatch.setattr("os.scandir", refuse)
        with pytest.raises(InputError, match="secret: Permission denied"):
            find_files(tmp_path)


class TestProbabilityFiles:
    def test_reading_stops_where_there_are_too_many_numbers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "BLOCK", 100)
        path = write(tmp_path / "p", b"0.5\n" * 1000)
        assert read_probabilities(path, 1000).tolist() == [0.5] * 1000
        with pytest.raises(
            InputError, match=r"\d\d numbers and maybe more; expected one for each of the text's 20 words"
        ):
            read_probabilities(path, 20)
        with pytest.raises(InputError, match="1,000 numbers; expected"):
            read_probabilities(path, 2000)


ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-99\t<s>\n-0.5\t</s>\n-0.3\ta\n\n\\end\\\n"


class TestArpaFiles:
    @pytest.mark.parametrize(
        ("old", "new", "what"),
        [
            ("\ta\n", "\t\n", "a 1-gram is ''; expected a word"),
            ("\ta\n", "\ta\x0bb\n", "expected a word"),
            ("\ta\n", "\ta\0\n", "a NUL byte; expected an ARPA file"),
            ("1=3", "1=" + "9" * 5000, "expected up to"),
            ("1=3", "1=" + "9" * 18, "3 1-grams; expected 999,"),
            ("\\end\\\n", "", "expected .end"),
            ("\\end\\\n", "\\2-grams:\n-1\ta a\n", "after the 1-grams; expected .end"),
            ("\\1-grams:", "x" * 100_000, "expected .1-grams"),
            ("-0.5\t</s>\n-0.3\ta\n", "", "2 1-grams|1 1-grams"),
        ],
    )
    def test_damaged_files_are_refused(self, old: str, new: str, what: str, tmp_path: Path) -> None:
        path = tmp_path / "x.arpa"
        path.write_text(ARPA.replace(old, new))
        with pytest.raises(FormatError, match=what) as caught:
            import_arpa(path, tmp_path / "m")
        assert len(str(caught.value)) < 500
        assert not (tmp_path / "m").exists()

    def test_a_file_without_words_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "x.arpa"
        path.write_text(ARPA.replace("1=3", "1=1").replace("-0.5\t</s>\n-0.3\ta\n", ""))
        with pytest.raises(FormatError, match="has no words; expected 1-grams"):
            import_arpa(path, tmp_path / "m")
        path.write_text(ARPA)
        assert import_arpa(path, tmp_path / "m").score("a") == pytest.approx(-0.8)
