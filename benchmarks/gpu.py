"""The GPU engine: counting, a pass of training, and text to model, beside what the card can do.

    python benchmarks/gpu.py CORPUS [--presets snm10-skip] [--work DIR] [--json FILE]

The card's rates are those of reading random places of a table of 1 GB, and of adding to them, the places known
beforehand. A look-up of training is a weight that is read, and later moved: of every feature of an event all
metafeatures, and of those with the link count the ones of the positive part too, where they are others.
"""

import sys
import time
from typing import Any

import torch
from common import ROOT, Bench, compared, timed

from snm.corpus import read_corpus
from snm.counting import unigram_counts
from snm.engines import find_gpu
from snm.features import Extractor, FeatureSpec, KeyLayout
from snm.metafeatures import MetafeatureSet
from snm.parallel import default_threads
from snm.tensors.counting import TensorCounter
from snm.tensors.extraction import TokenBlocks
from snm.tensors.training import EventCounts, TensorAdjustment
from snm.training import TrainingSettings

TABLE, LOOK_UPS = 1 << 28, 1 << 28
PAPER_WORDS = 0.8e9


def seconds_of(work: Any) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def card_rates(device: torch.device) -> tuple[float, float]:
    """Random places read, and added to, a second."""
    table = torch.zeros(TABLE, device=device)
    places = torch.randint(0, TABLE, (LOOK_UPS,), device=device)
    ones = torch.ones(LOOK_UPS, device=device)
    works = (lambda: table[places], lambda: table.index_add_(0, places, ones))
    read, add = (min(seconds_of(work) for _ in range(4)) for work in works)
    return LOOK_UPS / read, LOOK_UPS / add


def look_ups(events: EventCounts, adjustment: TensorAdjustment) -> int:
    """How many weights one pass reads."""
    total, conjunctions = 0, adjustment.conjunctions
    with_link = sum(c.group > 0 for c in conjunctions)
    for start in range(0, len(events), 1 << 18):
        batch = events.prepare(adjustment, True, start, min(start + (1 << 18), len(events)))
        n, p = batch.at_negative, batch.at_positive
        moved = (batch.positive > 0) & ((n.lines[1] != p.lines[1]) | (n.codes[1] != p.codes[1]))
        total += len(batch.events) * len(conjunctions) + int(moved.sum()) * with_link
    return total


def main() -> None:
    bench = Bench(__doc__, "snm10-skip")
    device = find_gpu()
    name = torch.cuda.get_device_name(device)
    read, add = card_rates(device)
    rows = [
        {"what": f"{name}: random reads", "G/s": read / 1e9},
        {"what": f"{name}: random additions", "G/s": add / 1e9},
    ]
    threads = default_threads()
    train = bench.text("train")
    begun = time.perf_counter()
    text, vocabulary = read_corpus(train, threads=threads)
    rows.append({"what": f"reading {text.events:,} tokens, {threads} threads", "s": time.perf_counter() - begun})
    for preset in bench.asked.presets:
        spec = FeatureSpec(preset)
        layout = KeyLayout.for_work(len(vocabulary), len(spec.types), text.events * len(spec.slots))
        extractor = Extractor(spec, layout, vocabulary)
        blocks = TokenBlocks(text.tokens, extractor, device)
        for label, copied in (("to the host's memory", True), ("on the card", False)):
            events = EventCounts(blocks, unigram_counts(text, extractor), None)
            free, _ = torch.cuda.mem_get_info(device)
            links = 0

            def count(events: EventCounts = events, free: int = free, copied: bool = copied) -> TensorCounter:
                nonlocal links
                counter = TensorCounter(blocks, int(0.8 * free), prune=2, events=events)
                if copied:
                    links = sum(len(part.targets) for part in counter)
                else:
                    for first, last in counter.ranges:
                        counter._count(first, last, int(counter.totals[first:last].sum()), "")
                return counter

            torch.cuda.synchronize()
            begun = time.perf_counter()
            counter = count()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begun
            what = f"counts and annotations of {preset}, {label}: {counter.links:,} keys, {len(counter.ranges)} walks"
            rows.append({"what": what, "s": seconds})
        for metafeatures in ("lean", "all"):
            settings = TrainingSettings(metafeatures=MetafeatureSet.parse(metafeatures))
            adjustment = TensorAdjustment(extractor, settings, settings.table_slots(links), device)
            adjustment.start = -3.0
            n = look_ups(events, adjustment)
            seconds = seconds_of(lambda a=adjustment, s=settings, e=events: e.train(a, s, 1, lambda n: None))
            rate = n / seconds
            what = (
                f"a pass over {text.events:,} events of {preset}, {metafeatures} metafeatures: "
                f"{text.events / seconds / 1e6:.2f} M events/s, {n:,} look-ups, "
                f"{rate / read:.1%} of the reads and {rate / add:.1%} of the additions that the card can do"
            )
            rows.append({"what": what, "s": seconds, "G/s": rate / 1e9})
            del adjustment
        del events, counter, blocks
        torch.cuda.empty_cache()
        model = bench.work / f"gpu-{preset}.model"
        command = [sys.executable, "-m", "snm", "train", "--engine", "gpu", "--preset", preset, "--force", "-o", model]
        made = timed([*command, train], cwd=ROOT)
        rows.append({"what": f"`snm train --engine gpu --preset {preset}`, text to model", "s": made.seconds})
        scored = timed([sys.executable, "-m", "snm", "ppl", model, bench.text("test")], cwd=ROOT)
        print(made.errors, scored.output)
    bench.report("gpu", rows)


if __name__ == "__main__":
    main()
