"""Leave-one-out training: metafeature weights looked up a second, beside the machine's rate of random additions.

    python benchmarks/adjust.py CORPUS [--presets snm5 small] [--work DIR] [--json FILE]

The table has the size that `snm train` gives it for the whole text; training uses a sample of the text. The machine's
rate is that of adding to the same number of random slots of the same table, precomputed, on the same number of threads.
Both take about the same time, so other load on the machine slows down both. A look-up is a weight that training reads
and later changes: for each feature of an event all metafeatures, and those of the positive part where they differ.
"""

import json
from collections.abc import Callable
from typing import IO

import numpy as np
from common import Bench, best_of, compared
from numba import njit

from snm import parallel
from snm.adjustment.events import AnnotatedEvents
from snm.adjustment.function import Adjustment
from snm.adjustment.settings import TrainingSettings
from snm.counts.counting import Counter, unigram_counts
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.layouts.keys import KeyLayout
from snm.layouts.weights import half_octave
from snm.system import default_threads
from snm.text.encoding import read_corpus
from snm.text.sampling import sample_sentences

EVENTS = 8_000_000
ROUNDS = 12


@njit(nogil=True)
def add_at(table, slots):
    for slot in slots:
        table[slot, 0] += np.float32(1)


def random_work(table: np.ndarray, threads: int, additions: int) -> Callable[[], None]:
    """A function that adds to `additions` random slots of a table, on all threads together."""
    slots = np.random.default_rng(1).integers(0, len(table), (threads, additions // threads), dtype=np.uint32)
    add_at(table, slots[0, :10])
    return lambda: parallel.run(lambda k: add_at(table, slots[k]), range(threads), threads)


def temporary_file() -> IO[bytes]:
    raise MemoryError("the counts of the sample do not fit into memory")


def look_ups(annotations: AnnotatedEvents, adjustment: Adjustment) -> int:
    """The number of weights that a pass reads."""
    values = annotations.values()
    feature_count, link_count = values >> np.uint32(16), values & np.uint32(0xFFFF)
    used = feature_count > 1
    bucket = np.array([0, *(half_octave(n) for n in range(1, 1 << 16))], np.uint8)
    with_link = int(adjustment.plan.ends[1] - adjustment.plan.ends[0])
    differ = used & (link_count > 1) & (bucket[link_count] != bucket[np.maximum(link_count, 1) - 1])
    features = int(np.count_nonzero(used)) + annotations.text.events
    return features * int(adjustment.plan.ends[1]) + int(np.count_nonzero(differ)) * with_link


def main() -> None:
    bench = Bench(__doc__, "snm5 snm10-skip")
    threads = default_threads()
    text, vocabulary = read_corpus(bench.text("train"), threads=threads)
    settings = TrainingSettings()
    rows = []
    for preset in bench.options.presets:
        spec = FeatureSpec(preset)
        sample = sample_sentences(text, EVENTS * 5 // len(spec.templates), 1)
        layout = KeyLayout.for_work(len(vocabulary), len(spec.types), sample.events * len(spec.templates))
        extractor = Extractor(spec, layout, vocabulary)
        unigrams = unigram_counts(sample, extractor)
        annotations = AnnotatedEvents(sample, extractor, unigrams, 8 << 30, temporary_file)
        links = sum(p.links for p in Counter(sample, extractor, 4 << 30, threads, annotations=annotations))
        with open(bench.model(preset) / "manifest.json", encoding="utf-8") as manifest:
            slots = json.load(manifest)["training"]["slots"]
        adjustment = Adjustment(extractor, settings, slots, threads)
        adjustment.start = -1.5

        def train(a: Adjustment = adjustment, b: AnnotatedEvents = annotations) -> None:
            b.train(a, settings, threads, lambda n: None)

        train()  # compiles, and maps the table's memory
        weights = look_ups(annotations, adjustment)
        seconds, random = best_of(ROUNDS, train, random_work(adjustment.table, threads, weights))
        rate, most = weights / seconds / 1e6, weights / random / 1e6
        what = f"{preset}: {sample.events:,} events, {links:,} links, {sample.events / seconds / 1e6:.2f} M events/s"
        rows.append(compared(what, rate, most, ">= 0.8", "M look-ups/s", rate / most))
    bench.report("adjust", rows)


if __name__ == "__main__":
    main()
