"""Counts on disk: the codes against their slow twin, ranges of buckets, rows of keys, damage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snm.counts.store import CHUNKS, CODES, DESCRIPTION, CountsWriter, StoredCounts, decode, encode
from snm.errors import FormatError
from snm.layouts.counts import Counts
from snm.layouts.keys import KeyLayout
from snm.reference import counts as reference
from tests.conftest import SMALL_SKIPS, extractor_of, parts_of, random_text, store_of
from tests.test_parity import all_counts

LARGEST = (1 << 32) - 1  # target


def counts_of(rows: reference.Rows) -> Counts:
    links = [link for _, row in rows for link in row]
    return Counts(
        np.array([key for key, _ in rows], np.uint64),
        np.array([sum(count for _, count in row) for _, row in rows], np.int64),
        np.cumsum([0, *(len(row) for _, row in rows)], dtype=np.int64),
        np.array([target for target, _ in links], np.uint32),
        np.array([count for _, count in links], np.int64),
    )


def same(a: Counts, b: Counts) -> bool:
    return all(np.array_equal(one, other) and one.dtype == other.dtype for one, other in zip(a, b, strict=True))


def key_of(number: int) -> int:
    """A key of 62 bits."""
    return number << 2 | 1


CASES: dict[str, reference.Rows] = {
    "no rows": [],
    "one row": [(key_of(1 << 40), [(7, 1)])],
    "the first and the last key": [(key_of(0), [(0, 1)]), (key_of((1 << 62) - 1), [(LARGEST, 1)])],
    "neighbours": [(key_of((1 << 61) + i), [(i, 1 + i)]) for i in range(100)],
    "large counts": [(key_of(5), [(0, 1 << 40), (1, (1 << 62) - 1), (LARGEST, 3)]), (key_of(6), [(4, 1 << 33)])],
    "a long row": [(key_of(1 << 60), [(3 * i, 1 + i % 3) for i in range(5000)])],
    "targets without gaps": [(key_of(77), [(i, 1) for i in range(300)])],
    "the end of a bucket": [(key_of((1 << 59) - 1 - i), [(2, 1)]) for i in range(50, -1, -1)],
}

targets, link_counts = st.integers(0, LARGEST) | st.integers(0, 20), st.integers(1, 3) | st.integers(1, 2**50)
links = st.dictionaries(targets, link_counts, min_size=1)
rows_of_keys = st.dictionaries(st.integers(0, (1 << 62) - 1) | st.integers(0, 50), links, max_size=20)


def check(rows: reference.Rows, bucket_bits: int) -> None:
    """Encode rows, compare every chunk with the slow twin's, and decode them again."""
    layout = KeyLayout(3, 3, bucket_bits)
    counts = counts_of(rows)
    encoded = encode(counts, 0, 1 << bucket_bits, layout)
    assert same(decode(encoded, layout), counts)
    assert (encoded.rows, encoded.links) == (len(counts.features), len(counts.targets))
    at = 0
    for bucket, chunk in enumerate(encoded.chunks):
        here = [row for row in rows if row[0] >> (64 - bucket_bits) == bucket]
        least, parameters = bucket << (64 - bucket_bits), [int(chunk[f"{n}_bits"]) for n in ("key", "target", "gap")]
        words = [int(word) for word in encoded.codes[at : at + chunk["words"]]]
        assert words == reference.encode(here, least, *parameters)
        assert reference.decode(words, len(here), least, *parameters) == here
        assert chunk["checksum"] == reference.checksum(words)
        at += len(words)
    assert at == len(encoded.codes)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bucket_bits", [1, 3])
def test_fixed_rows_are_encoded_as_the_reference_does(case: str, bucket_bits: int) -> None:
    check(CASES[case], bucket_bits)


@given(rows=rows_of_keys, bucket_bits=st.integers(1, 6))
def test_any_rows_are_encoded_as_the_reference_does(rows: dict[int, dict[int, int]], bucket_bits: int) -> None:
    check([(key_of(key), sorted(row.items())) for key, row in sorted(rows.items())], bucket_bits)


def test_rows_singles_and_links_by_type() -> None:
    layout = KeyLayout(3, 2, 1)
    counts = counts_of(
        [(0 << 2 | 1, [(3, 2), (4, 1)]), (1 << 2 | 1, [(3, 1)]), (3 << 2 | 1, [(3, 1)]), (7 << 2 | 1, [(1, 1)])]
    )
    assert encode(counts, 0, 2, layout).by_type.tolist() == [[1, 1, 0, 2], [0, 1, 0, 2], [2, 1, 0, 2]]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_store_has_the_rows_in_the_order_of_keys(threads: int, tmp_path: Path) -> None:
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of(SMALL_SKIPS, text, 202)
    whole = all_counts(text, extractor)
    expected = whole.between(1, len(whole.features))
    store = store_of(text, extractor, tmp_path / "counts", threads=threads, partitions=threads)
    assert (store.rows, store.links) == (len(expected.features), len(expected.targets))
    types = extractor.layout.type_of(expected.features)
    assert np.array_equal(store.rows_by_type, np.bincount(types, minlength=len(store.rows_by_type)))
    assert store.singles_by_type.sum() == np.count_nonzero(expected.feature_counts == 1)
    assert store.links_by_type is not None
    assert np.array_equal(
        store.links_by_type, np.bincount(np.repeat(types, np.diff(expected.offsets)), minlength=len(store.rows_by_type))
    )
    assert np.array_equal(store.words, np.bincount(text.tokens, minlength=202))
    for rows, bits in ((1, None), (100, 3), (1000, 40), (1 << 30, None)):
        parts = list(store.parts(rows, bits, threads))
        assert same(Counts.joined(parts), expected)
        assert all(len(part.features) for part in parts)
        firsts = [int(part.features[0]) for part in parts[1:]]
        lasts = [int(part.features[-1]) for part in parts[:-1]]
        if bits == 3:
            assert all(a >> 61 != b >> 61 for a, b in zip(lasts, firsts, strict=True))
    for row, end in ((0, 1), (17, 17), (5, 2000), (store.rows - 3, store.rows)):
        assert same(store.rows_between(row, end), expected.between(row, end))
    assert len(store.decode(3, 3).features) == 0
    list(store.parts(100, free=True))


def test_stores_are_the_same_bytes_for_any_partitions_and_threads(tmp_path: Path) -> None:
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of(SMALL_SKIPS, text, 202)
    stores = [
        store_of(text, extractor, tmp_path / f"{threads}", threads=threads, partitions=partitions)
        for threads, partitions in ((1, 1), (3, 1), (2, 7))
    ]
    for path in stores[0].folder.iterdir():
        assert all((store.folder / path.name).read_bytes() == path.read_bytes() for store in stores[1:])


def test_rows_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of(SMALL_SKIPS, text, 202)
    store = store_of(text, extractor, tmp_path / "counts")
    whole = store.decode(0, store.last)
    random = np.random.default_rng(3)
    known = np.sort(random.choice(len(whole.features), 500, replace=False))
    for searched in (1 << 18, 1000):
        monkeypatch.setattr("snm.counts.store.SEARCHED_ROWS", searched)
        keys = np.unique(np.append(whole.features[known], random.integers(1, 2**63, 300, np.uint64) | np.uint64(1)))
        assert same(store.rows_for(keys, threads=2), whole.select(known))
        assert len(store.rows_for(np.empty(0, np.uint64)).features) == 0


def test_a_range_of_buckets(tmp_path: Path) -> None:
    """What a task that counts a partition writes."""
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of(SMALL_SKIPS, text, 202)
    whole = store_of(text, extractor, tmp_path / "whole")
    writer = CountsWriter(tmp_path / "part", extractor.layout, 5)
    writer.append(encode(whole.decode(7, 11), 7, 11, extractor.layout))
    part = writer.finish(whole.words, 20, partition=3)
    assert (part.first, part.last, part.description["partition"]) == (5, 20, 3)
    assert same(part.decode(0, 1 << extractor.layout.bucket_bits), whole.decode(7, 11))
    assert same(part.decode(8, 9), whole.decode(8, 9))
    keys = whole.decode(8, 30).features
    assert same(part.rows_for(keys), whole.decode(8, 11))


def test_damage_is_an_error_of_one_line(tmp_path: Path) -> None:
    text = random_text(1, 300, 200, 40)
    extractor = extractor_of("ngram(0..4)", text, 202)
    folder = tmp_path / "counts"
    store = store_of(text, extractor, folder)
    good = {path.name: path.read_bytes() for path in folder.iterdir()}

    def damaged(name: str, data: bytes, message: str) -> None:
        (folder / name).write_bytes(data)
        with pytest.raises(FormatError, match=message) as raised:
            StoredCounts(folder).decode(0, store.last)
        assert "\n" not in str(raised.value)
        (folder / name).write_bytes(good[name])

    codes = bytearray(good[CODES])
    codes[len(codes) // 2] ^= 4
    damaged(CODES, bytes(codes), "bucket .* has another checksum")
    damaged(CODES, good[CODES][:-8], "is damaged")
    damaged(CHUNKS, good[CHUNKS][:-1] + b"\1", "checksum differs")
    damaged(DESCRIPTION, b"{", "is damaged")
    damaged(DESCRIPTION, json.dumps({**store.description, "version": 99}).encode(), "version 99")
    (folder / DESCRIPTION).unlink()
    with pytest.raises(FormatError, match="No such file"):
        StoredCounts(folder)


def test_counters_give_whole_buckets() -> None:
    text = random_text(1, 300, 200, 40)
    extractor = extractor_of("ngram(0..4)", text, 202)
    from snm.counts.counting import Counter

    parts = list(Counter(text, extractor, 1 << 30, pending_bytes=100_000))
    assert [part.first + len(part.chunks) for part in parts[:-1]] == [part.first for part in parts[1:]]
    assert sum(part.links for part in parts) == sum(len(part.targets) for part in parts_of(Counter(text, extractor, 1)))
