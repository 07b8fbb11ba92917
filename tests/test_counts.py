"""Counting: the same counts for any number of partitions and threads, memory limits, spilling, annotation, pruning."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from snm.adjustment.events import AnnotatedEvents
from snm.adjustment.function import Adjustment
from snm.adjustment.metafeatures import MetafeatureSet
from snm.adjustment.settings import TrainingSettings
from snm.counts.counting import Counter, unigram_counts, unigram_row
from snm.counts.spill import Spilled, SpillFile, aligned_bytes
from snm.errors import SettingsError
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.kernels import event_codes
from snm.kernels.counts import pack_count, unpack_count
from snm.layouts.counts import Counts
from snm.layouts.keys import KeyLayout
from snm.layouts.matrix import count_codes
from snm.layouts.weights import half_octave
from snm.progress import Advance, ignore
from snm.reference import counts as reference
from snm.settings import Settings
from snm.storage import ModelWriter
from tests.conftest import (
    SMALL_SKIPS,
    entry_of,
    extractor_of,
    parts_of,
    random_text,
    temporary_file,
    text_of,
    train,
    vocabulary_of,
)
from tests.test_parity import all_counts, as_dictionary


@pytest.mark.parametrize("spec", ["ngram(0..4)", "snm10-skip"])
def test_counts_do_not_depend_on_partitions_and_threads(spec: str) -> None:
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of(spec, text, 202)
    expected = all_counts(text, extractor)
    assert (expected.features[1:] > expected.features[:-1]).all()
    for partitions, threads in ((1, 2), (2, 1), (3, 3), (40, 2)):
        found = all_counts(text, extractor, partitions=partitions, threads=threads)
        for name in ("features", "feature_counts", "offsets", "targets", "link_counts"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name


def test_the_number_of_buckets_changes_nothing(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the counts, whose keys are the same, nor any file of a model."""
    text = random_text(1, 3000, 200, 40)
    made = []
    for more in (0, 1, 5):
        extractor = extractor_of(SMALL_SKIPS, text, 202)
        extractor.layout = replace(extractor.layout, bucket_bits=extractor.layout.bucket_bits + more)
        made.append(all_counts(text, extractor))
    for name, *found in zip(Counts._fields, *made, strict=True):
        assert np.array_equal(found[0], found[1]), name
        assert np.array_equal(found[0], found[2]), name

    chosen = KeyLayout.for_work
    files = []
    for more in (0, 1, 5):
        with monkeypatch.context() as patch:
            layout = replace(chosen(20, 9, 30_000), bucket_bits=4 + more)
            patch.setattr(KeyLayout, "for_work", lambda words, types, keys, layout=layout: layout)
            settings = Settings(features=SMALL_SKIPS, threads=1, engine="cpu")
            model = train(corpus_file, tmp_path / str(more), settings)
        assert model.layout == layout
        files.append({name: entry["sha256"] for name, entry in model.manifest["files"].items()})
    assert files[0] == files[1] == files[2]


def test_the_memory_limit_chooses_the_partitions() -> None:
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of("ngram(0..4)", text, 202)
    counter = Counter(text, extractor, memory=500_000)
    parts = parts_of(counter)
    assert 2 <= len(parts) == len(counter.ranges) < 1 << extractor.layout.bucket_bits
    assert max(int(part.link_counts.sum()) for part in parts) * 8 <= 500_000
    assert counter.done == pytest.approx(1)
    assert len(list(Counter(text, extractor, memory=1))) == 1 << extractor.layout.bucket_bits, "one bucket at the least"


@pytest.mark.parametrize("threads", [1, 3])
def test_pending_counts_stay_below_the_memory_limit(threads: int) -> None:
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of("snm10-skip", text, 202)
    budget = 3_000_000
    parts = parts_of(Counter(text, extractor, 1 << 30, threads, pending_bytes=budget))
    assert len(parts) > 10
    sizes = [sum(array.nbytes for array in part) for part in parts]
    assert max(sizes) * threads < 1.5 * budget, "parts are whole buckets"
    whole = all_counts(text, extractor)
    for name in ("features", "feature_counts", "targets", "link_counts"):
        found = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(found, getattr(whole, name)[-len(found) :])


def test_unseen_words_count_once_and_unk_the_number_of_words_seen_once() -> None:
    text = text_of([[4, 4, 5], [4, 6]])
    counts = unigram_counts(text, extractor_of("ngram(0)", text, 9))
    found = dict(zip(counts.targets.tolist(), counts.link_counts.tolist(), strict=True))
    assert found == {1: 2, 2: 2, 3: 1, 4: 3, 5: 1, 6: 1, 7: 1, 8: 1}
    assert counts.feature_counts[0] == sum(found.values())


def test_more_than_32_bits_of_tokens() -> None:
    """The row of the empty feature, events that are annotated with it, rows of M and count codes."""
    words = np.array([10, 10, 0, 3 << 32, 1 << 33, 1, 1])
    vocabulary = vocabulary_of(len(words))
    row = unigram_row(words, vocabulary)
    assert row.link_counts.tolist() == [10, 2, 3 << 32, 1 << 33, 1, 1]
    assert row.feature_counts.tolist() == [sum(row.link_counts.tolist())]
    assert count_codes(row.feature_counts).tolist() == [255]
    assert count_codes(np.array([1, 2, 1 << 31])).tolist() == [0, 8, 248]

    text = text_of([[3, 4, 5, 6]] * 20)
    extractor = Extractor(FeatureSpec("ngram(0..2)"), KeyLayout.for_work(len(words), 3, 1000), vocabulary)
    events = AnnotatedEvents(text, extractor, row, 1 << 20, temporary_file)
    for _ in Counter(text, extractor, 1 << 30, annotations=events):
        pass
    for settings in (
        TrainingSettings(slots=1000),
        TrainingSettings(slots=1000, metafeatures=MetafeatureSet.parse("all")),
    ):
        adjustment = Adjustment(extractor, settings, 1000)
        assert np.isfinite(events.train(adjustment, settings, 1, lambda n: None))
        weights, sums = adjustment.weigh(row)
        assert weights[2] / sums[0] == pytest.approx(words[3] / words[1:].sum(), rel=0.5)
        assert np.isfinite(weights).all()


def test_links_of_a_bucket_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    text = random_text(1, 300, 200, 40)
    extractor = extractor_of("ngram(0..4)", text, 202)
    whole = all_counts(text, extractor)
    with monkeypatch.context() as patch:
        patch.setattr("snm.counts.counting.MAX_BUCKET_LINKS", 30)
        with pytest.raises(SettingsError, match=r"its bucket has .* links; at most 30"):
            Counter(text, extractor, 1 << 30)
    monkeypatch.setattr("snm.counts.walks.MAX_RUN_LINKS", 10_000)
    counter = Counter(text, extractor, 1 << 30)
    assert len(counter._source.runs) > 1
    assert np.array_equal(Counts.joined(parts_of(counter)).link_counts, whole.link_counts[-counter_links(whole) :])


def counter_links(whole: Counts) -> int:
    """Links without the empty feature's."""
    return int(whole.offsets[-1] - whole.offsets[1])


def test_in_a_closed_vocabulary_unk_has_no_link() -> None:
    text = text_of([[4, 2, 5]])
    counts = unigram_counts(text, extractor_of("ngram(0)", text, 7, closed=True))
    assert counts.targets.tolist() == [1, 3, 4, 5, 6]


@pytest.mark.parametrize("memory", [100_000, 300_000, 1 << 30])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("phases", [1, 2, 5])
def test_spilled_links_give_the_same_counts(memory: int, threads: int, phases: int, tmp_path: Path) -> None:
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of("snm10-skip", text, 202)
    whole = all_counts(text, extractor)
    with ModelWriter(tmp_path / "m") as writer:
        counter = Counter(text, extractor, memory, threads, spill=writer, phases=phases)
        assert len(counter.phases) == phases
        assert (len(counter.ranges) > phases) == (memory < 1 << 30)
        parts = parts_of(counter)
        assert list(writer.folder.iterdir()) == []
        if sys.platform != "win32":
            assert not list(tmp_path.glob("tmp*")), "the file has no name"
    for name in ("features", "feature_counts", "targets", "link_counts"):
        found = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(found, getattr(whole, name)[-len(found) :])


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("when", ["at once", "with the first bytes"])
def test_spilling_without_direct_io(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    bypassed = []

    def refuse(flags: int) -> None:
        bypassed.append(bool(flags & os.O_DIRECT))
        if bypassed[-1] and when == "at once":
            raise OSError(errno.EINVAL, "Invalid argument")

    def write(handle: int, data: list[memoryview], at: int) -> int:
        if when == "with the first bytes" and bypassed[-1]:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.pwrite(handle, data[0], at)

    plain = fcntl.fcntl
    monkeypatch.setattr(fcntl, "fcntl", lambda f, c, a=0: plain(f, c) if c == fcntl.F_GETFL else refuse(a))
    monkeypatch.setattr("os.pwritev", write)
    file, data, found = SpillFile(tmp_path), aligned_bytes(10_000), aligned_bytes(10_000)
    data[:] = np.arange(len(data)) % 251
    file.write(data.data, 4096)
    file.read(found.data, 4096)
    assert np.array_equal(found, data)
    assert bypassed == {"at once": [True], "with the first bytes": [True, False]}[when]
    with pytest.raises(OSError, match="ends too early"):
        file.read(found.data, 8192)
    file.close()


def test_many_partitions_spill_links(corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is the same. With less disk, links are spilled in phases; with little, the text is walked instead."""
    said: list[str] = []
    made = []
    spilled = Spilled.spill
    phases: list[int] = []

    def spill(self: Spilled, phase: int, advance: Advance = ignore) -> None:
        phases.append(phase)
        spilled(self, phase, advance)

    monkeypatch.setattr(Spilled, "spill", spill)
    disks = {"one": (1, 1 << 40), "many": (20, 1 << 40), "less": (20, 4_000_000), "full": (20, 100_000)}
    for name, (partitions, free) in disks.items():
        monkeypatch.setattr("shutil.disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        settings = Settings(features="snm5-skip", partitions=partitions, threads=1, engine="cpu")
        made.append(train(corpus_file, tmp_path / name, settings, notify=said.append))
    files = [{k: v["sha256"] for k, v in model.manifest["files"].items()} for model in made]
    assert files[0] == files[1] == files[2] == files[3]
    assert len([line for line in said if "MB of disk: memory is small for this text" in line]) == 2
    assert phases[:2] == [0, 0]
    assert phases[2:] == list(range(1, len(phases) - 1))
    assert len(phases) > 2


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("spilled", [False, True])
def test_events_are_annotated_with_their_counts(partitions: int, threads: int, spilled: bool, tmp_path: Path) -> None:
    text = random_text(29, 400, 30, 20)
    extractor = extractor_of(f"{SMALL_SKIPS} + ngram(5..6)", text, 32)
    extractor.block = 5 * 64
    for memory in (1 << 20, 100_000):  # in memory as one run; on disk as several
        made = AnnotatedEvents(text, extractor, unigram_counts(text, extractor), memory, temporary_file)
        assert bool(made.bytes_in_memory) == (memory == 1 << 20)
        totals: dict[int, int] = {}
        links: dict[tuple[int, int], float] = {}
        with ModelWriter(tmp_path / "m") as writer:
            spill = writer if spilled else None
            counter = Counter(text, extractor, 1 << 30, threads, partitions, prune=2, annotations=made, spill=spill)
            for part in parts_of(counter):
                totals |= dict(zip(part.features.tolist(), part.feature_counts.tolist(), strict=True))
                links |= as_dictionary(part, part.link_counts)
        keys, values = extractor.keys(text.tokens, 0, len(text.tokens))[1:], made.values()
        annotated = np.zeros(2, np.int64)
        for k, word in enumerate(text.tokens.tolist()):
            for q, key in enumerate(keys[:, k].tolist()):
                expected = totals[key] << 16 | int(links[key, word]) if key in totals else 0
                assert values[k, q] == expected
                annotated += expected > 0, expected >> 16 > 1
        assert annotated[0] > 1000
        assert [made.mean_features(False), made.mean_features(True)] == pytest.approx(1 + annotated / len(text.tokens))


def test_large_counts_keep_twelve_bits() -> None:
    for count in (1, 2, 4095, 4096, 4097, 6143, 6144, 123_456, 2**31 + 12345, 2**32 - 1, 2**32, 2**41 + 3):
        found = entry_of(unpack_count)(entry_of(pack_count)(count))
        assert found <= count < found * (1 + 2**-11)
        assert found == count or count >= 4096
        assert half_octave(found) == half_octave(count)


@pytest.mark.parametrize("starts", [[0], [50, 0]])
def test_counts_of_events_are_coded_as_the_reference_does(starts: list[int]) -> None:
    """All numbers of bytes, at their edges, feature counts with and without a slot, and random pairs."""
    counts = [(1, 1), (19, 1), (19, 19), (20, 1), (20, 2), (20, 3), (112, 112), (113, 1), (113, 113), (963, 1)]
    counts += [(963, 963), (964, 1), (964, 254), (964, 255), (65535, 65535), (65535, 1), (964, 256), (65535, 3)]
    random = np.random.default_rng(3).integers(1, 1100, (2000, 2)).tolist()
    values = np.array([0, 0, *(f << 16 | min(f, n) for f, n in (*counts, *random))], np.uint32)
    sizes = np.diff([*starts[::-1], len(values)])[::-1].copy()
    expected = np.concatenate([values[at : at + n] for at, n in zip(starts, sizes.tolist(), strict=True)])
    coded = np.empty(event_codes.MAX_BYTES * len(values), np.uint8)
    size = event_codes.encode_values(values, np.array(starts), sizes, coded)
    assert event_codes.LARGEST_NUMBERED == 963
    assert coded[:size].tobytes() == reference.encode_values(expected.tolist())
    pairs, found = np.empty(event_codes.FIRST_OF_THREE, np.uint32), np.empty_like(values)
    event_codes.list_pairs(pairs)
    event_codes.decode_values(coded[:size], pairs, found)
    assert np.array_equal(found, expected)


def test_one_word_and_features_longer_than_the_text() -> None:
    text = text_of([[3]])
    counts = all_counts(text, extractor_of("ngram(0) + skip(r=3, s=5, a=3)", text, 4))
    assert counts.features.tolist() == [1]
    assert counts.link_counts.tolist() == [1, 1, 1], "</S>, <UNK> and the word"


def test_pruning_leaves_out_rare_rows_and_nothing_else() -> None:
    text = random_text(23, 300, 12, 20)
    extractor = extractor_of("ngram(0..6) + skip(r=1..2, s=1..2, words=1..3)", text, 14)
    kinds = extractor.spec.types
    whole = Counts.joined(parts_of(Counter(text, extractor, 1 << 30)))
    for partitions in (1, 4):
        parts = parts_of(Counter(text, extractor, 1 << 30, partitions=partitions, prune=3))
        features = np.concatenate([part.features for part in parts])
        exempt = np.array([kinds[t].is_ngram and kinds[t].a < 5 for t in extractor.layout.type_of(whole.features)])
        kept = (whole.feature_counts >= 3) | exempt
        assert 0 < kept.sum() < len(kept)
        assert np.array_equal(features, whole.features[kept])
        assert np.array_equal(np.concatenate([part.feature_counts for part in parts]), whole.feature_counts[kept])
        links = np.repeat(kept, np.diff(whole.offsets))
        assert np.array_equal(np.concatenate([part.targets for part in parts]), whole.targets[links])
        assert np.array_equal(np.concatenate([part.link_counts for part in parts]), whole.link_counts[links])
