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
        filled += made.add(found, filled)
    return made.first(filled)
