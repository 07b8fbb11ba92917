"""The GPU engine: counting, a pass of training, and text to model, beside the card's rates of random access.

    python benchmarks/gpu.py CORPUS [--presets snm10-skip] [--work DIR] [--json FILE]

The card's rates are those of reading random slots of a table of 1 GB, and of adding to them; the slots are precomputed.
A look-up is a weight that training reads and later changes: for each feature of an event all metafeatures, and those of
the positive part where they differ.
"""

import json
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from common import ROOT, Bench, timed

from snm.adjustment.metafeatures import MetafeatureSet
from snm.adjustment.settings import TrainingSettings
from snm.counts.counting import unigram_counts
from snm.devices import find_gpu
from snm.engines.gpu import PARTITION_SHARE
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.layouts.keys import KeyLayout
from snm.system import default_threads
from snm.tensors.adjustment import TensorAdjustment
from snm.tensors.counts import TensorCounter
from snm.tensors.events import TensorEvents
from snm.tensors.features import TokenBlocks
from snm.text.encoding import Text, read_corpus
from snm.text.vocabulary import Vocabulary

TABLE, LOOK_UPS = 1 << 28, 1 << 28


def seconds_of(work: Any) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def card_rates(device: torch.device) -> tuple[float, float]:
    """Random reads and random additions a second."""
    table = torch.zeros(TABLE, device=device)
    slots = torch.randint(0, TABLE, (LOOK_UPS,), device=device)
    ones = torch.ones(LOOK_UPS, device=device)
    works = (lambda: table[slots], lambda: table.index_add_(0, slots, ones))
    read, add = (min(seconds_of(work) for _ in range(4)) for work in works)
    return LOOK_UPS / read, LOOK_UPS / add


def look_ups(events: TensorEvents, adjustment: TensorAdjustment) -> int:
    """The number of weights that a pass reads."""
    total, conjunctions = 0, adjustment.conjunctions
    with_link = sum(c.group > 0 for c in conjunctions)
    for start in range(0, len(events), 1 << 18):
        batch = events.prepare(adjustment, True, start, min(start + (1 << 18), len(events)))
        n, p = batch.at_negative, batch.at_positive
        moved = (batch.positive > 0) & ((n.lines[1] != p.lines[1]) | (n.codes[1] != p.codes[1]))
        total += len(batch.events) * len(conjunctions) + int(moved.sum()) * with_link
    return total


class Rows:
    """The rows of the table, printed as they are added."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def add(self, what: str, figure: float, unit: str = "s", asked: str = "") -> None:
        self.made.append({"what": what, "unit": unit, "snm": figure, "asked": asked})
        print(f"{what}: {figure:.3g} {unit}", flush=True)


def main() -> None:
    bench = Bench(__doc__, "snm10-skip")
    device = find_gpu()
    rows, name = Rows(), torch.cuda.get_device_name(device)
    read, add = card_rates(device)
    rows.add(f"{name}: random reads", read / 1e9, "G/s")
    rows.add(f"{name}: random additions", add / 1e9, "G/s")
    threads = default_threads()
    begun = time.perf_counter()
    text, vocabulary = read_corpus(bench.text("train"), threads=threads)
    rows.add(f"reading {text.events:,} tokens, {threads} threads", time.perf_counter() - begun)
    for preset in bench.options.presets:
        measure_steps(preset, text, vocabulary, device, rows, read, add)
        torch.cuda.empty_cache()
        model = bench.work / f"gpu-{preset}.model"
        command = [sys.executable, "-m", "snm", "train", "--engine", "gpu", "--preset", preset, "--force", "-o", model]
        made = timed([*command, bench.text("train")], cwd=ROOT)
        rows.add(f"`snm train --engine gpu --preset {preset}`, text to model", made.seconds, "s", "<= 150")
        scored = timed([sys.executable, "-m", "snm", "ppl", "--json", model, bench.text("test")], cwd=ROOT)
        rows.add("its test perplexity", json.loads(scored.output)["ppl"], "")
    bench.report("gpu", rows.made)


def measure_steps(
    preset: str, text: Text, vocabulary: Vocabulary, device: torch.device, rows: Rows, read: float, add: float
) -> None:
    """Measure counting and a pass of training."""
    spec = FeatureSpec(preset)
    layout = KeyLayout.for_work(len(vocabulary), len(spec.types), text.events * len(spec.templates))
    extractor = Extractor(spec, layout, vocabulary)
    blocks = TokenBlocks(text.tokens, extractor, device)
    events = TensorEvents(blocks, unigram_counts(text, extractor), None)
    free, _ = torch.cuda.mem_get_info(device)

    def counter_of(events: TensorEvents | None) -> TensorCounter:
        return TensorCounter(blocks, int(PARTITION_SHARE * free), prune=2, events=events)

    def count(events: TensorEvents | None) -> None:
        counter = counter_of(events)
        for first, last in counter.ranges:
            counter.count(first, last, "")

    for what, chosen in ((f"counts of {preset}", None), (f"counts of {preset}, also of all events", events)):
        rows.add(f"{what}, on the card", min(seconds_of(lambda e=chosen: count(e)) for _ in range(3)), "s", "<= 5")
    begun = time.perf_counter()
    counter = counter_of(events)
    links = sum(part.links for part in counter)
    what = f"the same, {counter.links:,} keys in {len(counter.ranges)} partitions, handed to the host"
    rows.add(what, time.perf_counter() - begun)
    for metafeatures in ("lean", "all"):
        settings = TrainingSettings(metafeatures=MetafeatureSet.parse(metafeatures))
        adjustment = TensorAdjustment(extractor, settings, settings.table_slots(links), device)
        n = look_ups(events, adjustment)
        adjustment.start = -3.0
        events.train(adjustment, replace(settings, rate=1e-9), 1, lambda n: None)  # compiles
        seconds = seconds_of(lambda a=adjustment, s=settings: events.train(a, s, 1, lambda n: None))
        rows.add(
            f"a pass over {text.events:,} events, {len(adjustment.conjunctions)} metafeatures a feature", seconds, "s",
            "<= 60" if metafeatures == "all" else "",
        )  # fmt: skip
        rows.add("events", text.events / seconds / 1e6, "M/s")
        rows.add("look-ups", n / seconds / 1e9, "G/s")
        rows.add("look-ups / random reads of the card", n / seconds / read, "")
        rows.add("look-ups / random additions of the card", n / seconds / add, "")
        del adjustment


if __name__ == "__main__":
    main()
