"""From files to tokens: all sources of text, and invalid text."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from snm.errors import InputError, MissingExtra, SettingsError
from snm.loading import load
from snm.pipeline import train
from snm.settings import Settings
from snm.storage import ModelWriter
from snm.text.encoding import Text, count_words, encode_files, encode_lines, read_corpus, read_vocabulary
from snm.text.files import find_files, read_lines
from snm.text.sampling import draw_sentences, sample_sentences, split_sentences
from snm.text.vocabulary import Vocabulary, split_words
from tests.conftest import random_text, text_of

TEXT = "the cat sat\n\nthe dog sat\n  the   cat\tran  \n"
TOKENS = ["<S>", "the", "cat", "sat", "</S>", "<S>", "the", "dog", "sat", "</S>", "<S>", "the", "cat", "ran", "</S>"]


def words(text: Text, vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.words[token] for token in text.tokens]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", ["txt", "gz", "bz2", "xz", "zst"])
def test_plain_and_compressed_files(tmp_path: Path, kind: str) -> None:
    data = TEXT.encode()
    packed = {
        "txt": data,
        "bz2": bz2.compress(data),
        "gz": gzip.compress(data),
        "xz": lzma.compress(data),
        "zst": zstandard.compress(data),
    }
    path = write(tmp_path / f"a.{kind}", packed[kind])
    text, vocabulary = read_corpus([path], min_count=1)
    assert words(text, vocabulary) == TOKENS
    assert (text.sentences, text.events) == (3, 12)


def test_folders_globs_and_several_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "a.txt", b"one")
    write(tmp_path / "deep" / "b.txt.gz", gzip.compress(b"two\n"))
    for sources in ([tmp_path], [f"{tmp_path}/**/*.t*"], [tmp_path / "a.txt", tmp_path / "deep"]):
        text, vocabulary = read_corpus(sources, min_count=1)
        assert words(text, vocabulary) == ["<S>", "one", "</S>", "<S>", "two", "</S>"]


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    write(tmp_path / ".git" / "object", b"\0")
    write(tmp_path / ".hidden", b"\0")
    write(tmp_path / "a", b"word")
    assert find_files(tmp_path) == [str(tmp_path / "a")]


def test_a_single_source_needs_no_list(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"word")
    assert find_files(str(path)) == find_files(path) == [str(path)]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    text, vocabulary = read_corpus(["-"], min_count=1)
    assert words(text, vocabulary) == TOKENS


def test_the_vocabulary_is_ordered_by_count_then_spelling(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"b a c a c d\n")
    _, vocabulary = read_corpus([path], min_count=1)
    assert vocabulary.words == ("<S>", "</S>", "<UNK>", "a", "c", "b", "d")
    assert read_corpus([path], min_count=2)[1].words[3:] == ("a", "c")
    assert read_corpus([path], min_count=1, max_words=3)[1].words[3:] == ("a", "c", "b")


def test_rare_words_are_unknown_and_markers_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"<s> a a rare <unk> <UNK> </s>\n<s> </s>\n<S> a b </S>\n")
    text, vocabulary = read_corpus([path], min_count=2)
    expected = ["<S>", "a", "a", "<UNK>", "<UNK>", "<UNK>", "</S>", "<S>", "a", "<UNK>", "</S>"]
    assert words(text, vocabulary) == expected
    assert np.array_equal(encode_files(path, vocabulary).tokens, text.tokens)
    assert split_words(" <s> a\ta <unk> </s>\r") == ["a", "a", "<unk>"]


def test_learning_a_vocabulary_and_encoding_with_it_agree(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "\n".join(f"w{i % 97} w{i % 13} é{i % 7} 中文" for i in range(5000)).encode())
    text, vocabulary = read_corpus([path], min_count=3)
    assert np.array_equal(encode_files([path], vocabulary).tokens, text.tokens)
    assert np.array_equal(encode_lines(path.read_text().split("\n"), vocabulary).tokens, text.tokens)


def test_the_hash_table_grows_with_many_words(tmp_path: Path) -> None:
    path = write(tmp_path / "a", " ".join(f"word{i}" for i in range(60_000)).encode())
    _, vocabulary = read_corpus([path], min_count=1)
    assert sorted(vocabulary.words[3:]) == sorted(f"word{i}" for i in range(60_000))


@given(lines=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_ascii_white_space_separates_words(lines: list[str]) -> None:
    data = "\n".join(lines).encode()
    vocabulary = Vocabulary(dict.fromkeys(split_words(data.decode().replace("\n", " "))))
    tokens = encode_lines(data.decode().split("\n"), vocabulary).tokens
    expected = []
    for line in data.split(b"\n"):
        found = [vocabulary.id_of(word.decode()) for word in line.split()]
        expected += [0, *found, 1] if found else []
    assert tokens.tolist() == expected


def test_words_of_all_lengths_at_all_positions() -> None:
    """Words are read eight bytes at a time; a character below the space may be part of one."""
    made = [letter * length for length in range(1, 40) for letter in ("a", "é", "\x1f", "a\x01", "zz\x7f")]
    distinct = sorted(set(made))
    vocabulary = Vocabulary(distinct)
    for line in [" ".join(made), *distinct, "\t".join(reversed(made)) + " x"]:
        expected = ["<S>", *(word if word in vocabulary.ids else "<UNK>" for word in split_words(line)), "</S>"]
        assert words(encode_lines([line], vocabulary), vocabulary) == expected


@pytest.mark.parametrize("block", [1, 2, 5, 64])
def test_tokens_do_not_depend_on_the_block_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    path = write(tmp_path / "a", "añb  ccc\nlongerword é\n\nx".encode())
    expected = read_corpus([path], min_count=1)
    monkeypatch.setattr("snm.text.files.BLOCK", block)
    text, vocabulary = read_corpus([path], min_count=1)
    assert vocabulary == expected[1]
    assert np.array_equal(text.tokens, expected[0].tokens)
    assert [line for lines in read_lines([path]) for line in lines] == ["añb  ccc", "longerword é", "", "x"]


# -- invalid input: a one-line error, or a defined result


def refused(path: Path | str, *what: str) -> None:
    with pytest.raises(InputError) as caught:
        read_corpus([path])
    message = str(caught.value)
    assert "\n" not in message
    for part in what:
        assert part in message


def test_an_empty_file(tmp_path: Path) -> None:
    refused(write(tmp_path / "empty", b""), "empty", "no words")


def test_blank_lines_only(tmp_path: Path) -> None:
    refused(write(tmp_path / "blank", b"\n \n\t\r\n"), "blank", "no words")


def test_an_empty_folder(tmp_path: Path) -> None:
    refused(tmp_path, "the folder is empty")


def test_a_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere", "no such file")


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root and Windows read every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path / "secret", b"a")
    path.chmod(0)
    refused(path, "cannot read", "secret", "Permission denied")


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "secret", b"a")

    def no(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", no)
    refused(path, "cannot read", "secret", "Permission denied")


def test_invalid_utf8(tmp_path: Path) -> None:
    refused(write(tmp_path / "latin", b"fine\nalso fine\ncaf\xe9 here\n"), "latin, line 3", "0xe9", "iconv")


def test_nul_bytes(tmp_path: Path) -> None:
    refused(write(tmp_path / "utf16", "one\ntwo".encode("utf-16-le")), "utf16, line 1", "NUL")


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_a_truncated_archive(tmp_path: Path, kind: str) -> None:
    data = b"".join(os.urandom(20).hex().encode() + b"\n" for _ in range(20_000))
    packed = {"gz": gzip.compress(data), "xz": lzma.compress(data), "zst": zstandard.compress(data)}[kind]
    refused(write(tmp_path / "cut", packed[: len(packed) * 6 // 10]), "cannot read", "cut")


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_a_damaged_archive(tmp_path: Path, kind: str) -> None:
    data = b"".join(os.urandom(20).hex().encode() + b"\n" for _ in range(2000))
    packed = bytearray({"gz": gzip.compress(data), "xz": lzma.compress(data), "zst": zstandard.compress(data)}[kind])
    packed[len(packed) // 2 :] = bytes(len(packed) - len(packed) // 2)
    refused(write(tmp_path / "bad", bytes(packed)), "cannot read", "bad")


def test_several_frames_are_one_text(tmp_path: Path) -> None:
    packed = zstandard.compress(b"one two\n") + zstandard.compress(b"three\n")
    text, _ = read_corpus(write(tmp_path / "a.zst", packed), min_count=1)
    assert (text.sentences, text.events) == (2, 5)


def test_one_word(tmp_path: Path) -> None:
    text, vocabulary = read_corpus([write(tmp_path / "one", b"word")], min_count=1)
    assert words(text, vocabulary) == ["<S>", "word", "</S>"]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    text, vocabulary = read_corpus([write(tmp_path / "bom", b"\xef\xbb\xbfword\r\n")], min_count=1)
    assert words(text, vocabulary) == ["<S>", "word", "</S>"]


def test_a_line_of_fifty_megabytes(tmp_path: Path) -> None:
    path = write(tmp_path / "long", b"ab cd " * (50_000_000 // 6) + b"\nab\n")
    text, vocabulary = read_corpus([path])
    assert (text.sentences, len(vocabulary)) == (2, 5)
    assert text.events == 2 * (50_000_000 // 6) + 1 + 2


def test_a_word_of_a_hundred_kilobytes(tmp_path: Path) -> None:
    path = write(tmp_path / "long", b"a a a " + b"x" * 100_000 + b" a\n")
    text, vocabulary = read_corpus([path])
    assert words(text, vocabulary) == ["<S>", "a", "a", "a", "<UNK>", "a", "</S>"]


def test_an_empty_name() -> None:
    refused("", "name of a text is empty")


def test_no_sources() -> None:
    with pytest.raises(InputError, match="no text given"):
        read_corpus([])


def test_zst_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.zst", zstandard.ZstdCompressor().compress(b"a"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match="pip install zstandard"):
        read_corpus([path])


# -- vocabulary files


def test_unk_is_added_to_a_vocabulary_without_it(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write(tmp_path / "v", b"\xef\xbb\xbfcat\ndog\ncat\n\n<S>\n<unk>\n dog\r\n"))
    assert vocabulary.words == ("<S>", "</S>", "<UNK>", "cat", "dog")
    assert vocabulary.id_of("bird") == vocabulary.unknown


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "holds no words"),
        (b"two words\n", "line 1"),
        (b"a\n\xff\n", "line 2: invalid UTF-8"),
        (None, "cannot read"),
    ],
)
def test_a_bad_vocabulary_file(tmp_path: Path, data: bytes | None, what: str) -> None:
    path = tmp_path / "v"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError, match=what):
        read_vocabulary(path)


# -- samples and slices


def test_samples_are_whole_sentences() -> None:
    text = random_text(1, 100)
    sample = sample_sentences(text, 100, seed=3)
    assert 100 <= sample.events < 100 + 15
    assert (sample.tokens == 0).sum() == (sample.tokens == 1).sum() == sample.sentences
    assert sample_sentences(text, 10**9, seed=3) is text
    rest, end = split_sentences(text, 100)
    assert np.array_equal(np.concatenate([rest.tokens, end.tokens]), text.tokens)
    assert rest.sentences + end.sentences == text.sentences
    assert 100 <= end.events < 100 + 15
    assert np.shares_memory(rest.tokens, text.tokens)
    assert [part.sentences for part in split_sentences(text, 10**9)] == [1, 99]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=20), st.integers(0, 60))
def test_the_slice_is_the_last_sentences_with_enough_events(lengths: list[int], events: int) -> None:
    text = text_of([[3] * n for n in lengths])
    enough = next((n for n in range(1, len(lengths)) if sum(lengths[-n:]) + n >= events), len(lengths) - 1)
    rest, end = split_sentences(text, events)
    assert (rest.sentences, end.sentences) == (len(lengths) - enough, enough)
    assert np.array_equal(np.concatenate([rest.tokens, end.tokens]), text.tokens)
    assert end.events == sum(lengths[-enough:]) + enough


def test_a_long_text_is_sampled_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    text = random_text(1, 1000)
    monkeypatch.setattr("snm.text.encoding.PIECE", 500)
    where = [(part.start, part.stop, int(chosen.sum())) for part, chosen in draw_sentences(text, 2000, seed=3)]
    assert [start for start, _, _ in where] == [0, *(stop for _, stop, _ in where[:-1])]
    assert where[-1][1] == len(text.tokens)
    assert all(text.tokens[start] == 0 for start, _, _ in where)
    assert len(where) > 10
    for start, stop, chosen in where:
        assert chosen / (stop - start) == pytest.approx(2000 / text.events, abs=0.05)
    sample = sample_sentences(text, 2000, seed=3)
    assert len(sample.tokens) == sum(chosen for _, _, chosen in where)
    assert 2000 <= sample.events < 2000 + 15
    assert (sample.tokens == 0).sum() == (sample.tokens == 1).sum() == sample.sentences


@pytest.mark.parametrize("documents", [False, True])
def test_a_text_on_disk_equals_the_text_in_memory(
    tmp_path: Path, documents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snm.text.files.BLOCK", 100)
    path = write(tmp_path / "text", b"".join(b"word%d again\n" % (i % 17) + b"\n" * (i % 7 == 0) for i in range(300)))
    expected, vocabulary = read_corpus(path, documents=documents, threads=2)
    with ModelWriter(tmp_path / "model") as writer:
        for text in (
            read_corpus(path, documents=documents, threads=2, join=writer.spool)[0],
            encode_files(path, vocabulary, join=writer.spool),
        ):
            assert isinstance(text.tokens.base, np.memmap)
            assert np.array_equal(text.tokens, expected.tokens)
            assert (text.sentences, text.documents) == (expected.sentences, expected.documents)
            monkeypatch.setattr("snm.text.encoding.PIECE", 64)
            assert np.array_equal(count_words(text, len(vocabulary)), np.bincount(text.tokens))
            drawn = sample_sentences(text, 100, 1, writer.spool)
            assert isinstance(drawn.tokens.base, np.memmap)
            assert np.array_equal(drawn.tokens, sample_sentences(expected, 100, 1).tokens)
        assert writer.spool([]).tolist() == []
        assert list(writer.folder.iterdir()) == [], "files without a name"


class TestDocuments:
    """`<S>` opens a document, a blank line ends it."""

    def encode(self, tmp_path: Path, text: str, document: bool = True) -> Text:
        path = tmp_path / "text"
        path.write_text(text)
        return encode_files([path], Vocabulary(["a", "b", "c"], document=document))

    def test_sentences_of_a_document_follow_each_other(self, tmp_path: Path) -> None:
        text = self.encode(tmp_path, "\n\na b\nc\n\n \n\na\r\n\r\nb c\n")
        assert text.tokens.tolist() == [0, 3, 4, 1, 5, 1, 0, 3, 1, 0, 4, 5, 1]
        assert (text.documents, text.sentences, text.events) == (3, 4, 10)

    def test_without_documents_every_sentence_is_a_segment(self, tmp_path: Path) -> None:
        text = self.encode(tmp_path, "a b\nc\n\na\n", document=False)
        assert text.tokens.tolist() == [0, 3, 4, 1, 0, 5, 1, 0, 3, 1]
        assert (text.documents, text.sentences, text.events) == (None, 3, 7)

    def test_a_file_ends_a_document(self, tmp_path: Path) -> None:
        for name in ("1", "2"):
            (tmp_path / name).write_text("a\nb")
        text = encode_files([tmp_path / "1", tmp_path / "2"], Vocabulary(["a", "b"], document=True))
        assert text.tokens.tolist() == [0, 3, 1, 4, 1, 0, 3, 1, 4, 1]

    def test_a_learned_vocabulary_records_documents(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("a b\na b\n\na b\n")
        text, vocabulary = read_corpus([tmp_path / "text"], documents=True)
        assert vocabulary.document
        assert text.documents == 2
        assert text.tokens.tolist() == [0, 3, 4, 1, 3, 4, 1, 0, 3, 4, 1]

    def test_slices_are_whole_documents(self, tmp_path: Path) -> None:
        text = self.encode(tmp_path, "a b\nc\n\na\nb\n\nb c\n")
        rest, end = split_sentences(text, 1)
        assert (rest.documents, rest.sentences, rest.events) == (2, 4, 9)
        assert end.tokens.tolist() == [0, 4, 5, 1]
        drawn = sample_sentences(text, 1, 3)
        assert drawn.documents == 1
        assert drawn.events == len(drawn.tokens) - 1

    def test_a_model_of_documents(self, tmp_path: Path) -> None:
        """The first word of a sentence depends on the sentence before it."""
        random = np.random.default_rng(2)
        pairs = [f"ask {w}\nsay {w}" for w in random.choice(["red", "blue", "green"], 900)]
        (tmp_path / "text").write_text("\n\n".join(pairs) + "\n")
        settings = Settings(features="ngram(0..1) + skip(r=1, s=1, a=1)", threads=1, document=True, gate=0)
        model = train([tmp_path / "text"], tmp_path / "m", settings)
        again = load(model.path)
        assert again.vocabulary.document
        tokens = encode_files([tmp_path / "text"], again.vocabulary)
        assert again.perplexity(tokens).ppl < 1.4, "the second colour is known"
        alone = again.score_words(["say red", "ask red"])
        assert [word for word, _ in alone[0]] == ["say", "red", "</S>"]
        assert again.perplexity(["ask red", "say red", "", "ask blue", "say blue"]).ppl < 1.5
        with pytest.raises(SettingsError, match="documents are for SNM"):
            Settings(model="kn", document=True)


@pytest.mark.parametrize("ending", ["", "\n"])
def test_tokens_do_not_depend_on_threads(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, ids, tokens and sentences are the same. Blocks are small, so that each thread gets many."""
    random = np.random.default_rng(5)
    lines = [" ".join(f"wört{n}" for n in random.zipf(1.4, random.integers(0, 12)) % 500) for _ in range(800)]
    for name in ("a", "b"):
        (tmp_path / name).write_text("\n".join(lines) + ending)
        random.shuffle(lines)
    monkeypatch.setattr("snm.text.files.BLOCK", 300)
    (one, vocabulary), (three, other) = (read_corpus(tmp_path, threads=n) for n in (1, 3))
    assert vocabulary == other
    assert len(vocabulary) > 100
    assert np.array_equal(one.tokens, three.tokens)
    assert one.sentences == three.sentences
    whole = encode_files(tmp_path, vocabulary)
    assert np.array_equal(one.tokens, whole.tokens)
