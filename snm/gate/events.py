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
    """The rows of a text's events."""
    n = extractor.n_templates
    gate = Gate.of(np.zeros(n, np.float32), n)
    made, filled = GateEvents.empty(text.events, n), 0
    for start, stop in extractor.blocks(0, len(text.tokens)):
        found = row_kernels.find(extractor.keys(text.tokens, start, stop), text.tokens[start:stop], matrix, gate)
        events = np.flatnonzero(found.row_sum[0] > 0)
        here = slice(filled, filled + len(events))
        made.codes[here], made.lengths[here] = found.code.T[events], found.length.T[events]
        made.sums[here], made.weights[here] = found.row_sum.T[events], found.weight.T[events]
        filled += len(events)
    return made.first(filled)
