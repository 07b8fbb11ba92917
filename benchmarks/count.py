"""Counting the features of a preset in 8 GB of memory, beside the whole of lmplz.

python benchmarks/count.py CORPUS [--presets snm5 snm10-skip] [--kenlm DIR] [--work DIR] [--json FILE]
"""

import resource
import time

from common import Bench, compared

from snm.counts.counting import Counter
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.layouts.keys import KeyLayout
from snm.system import default_threads
from snm.text.encoding import read_corpus

MEMORY = 8 << 30
ASKED = {"snm10-skip": "<= 1.5"}


def main() -> None:
    bench = Bench(__doc__, "snm5 snm10-skip")
    threads = default_threads()
    text, vocabulary = read_corpus(bench.text("train"), threads=threads)
    reference = bench.lmplz().seconds
    rows = []
    for preset in bench.options.presets:
        spec = FeatureSpec(preset)
        layout = KeyLayout.for_work(len(vocabulary), len(spec.types), text.events * len(spec.templates))
        extractor = Extractor(spec, layout, vocabulary)
        begun = time.perf_counter()
        counter = Counter(text, extractor, MEMORY - text.tokens.nbytes, threads, prune=2)
        links = sum(part.links for part in counter)
        seconds = time.perf_counter() - begun
        what = f"count {preset}: {counter.links:,} keys, {links:,} links, {len(counter.ranges)} walks"
        rows.append(compared(what, seconds, reference, ASKED.get(preset, ""), "s", seconds / reference))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    rows.append(compared("peak memory of it all", peak, MEMORY / 1e9, "<= 1", "GB", peak * 1e9 / MEMORY))
    bench.report("count", rows)


if __name__ == "__main__":
    main()
