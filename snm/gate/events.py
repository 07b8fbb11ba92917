"""What the gate sees of held-out text: the rows of its events in a finished matrix."""

from __future__ import annotations

import numpy as np

from snm.features.extraction import Extractor
from snm.gate.fitting import GateEvents
from snm.kernels import rows as row_kernels
from snm.layouts.gate import Gate
from snm.layouts.matrix import Matrix
from snm.text.encoding import Text


def gate_events(extractor: Extractor, matrix: Matrix, text: Text) -> GateEvents:
    """The rows of a text's events, and of its caches."""
    caches = extractor.cache_reader()
    n = extractor.n_templates + len(caches)
    gate = Gate.of(np.zeros(n, np.float32), n)
    made, filled = GateEvents.empty(text.events, n, len(caches)), 0
    for start, stop in extractor.blocks(0, len(text.tokens)):
        keys, cached = extractor.keys(text.tokens, start, stop), caches.rows(text.tokens, start, stop)
        found = row_kernels.find(keys, text.tokens[start:stop], matrix, gate, cached)
        filled += made.add(found, filled)
    return made.first(filled)
