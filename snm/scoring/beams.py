"""Word-by-word scoring: the records and scratch memory that the compiled `expand` and `step` are handed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from snm.features.extraction import Extractor
from snm.kernels import beams as beam_kernels
from snm.kernels import gate as gate_kernels
from snm.layouts.beams import BEAM_ARRAYS, BEAM_RECORD, MODEL_ARRAYS, ROW_ARRAYS
from snm.layouts.caches import Caches
from snm.layouts.gate import Gate
from snm.layouts.matrix import Matrix


class BeamScorer(ABC):
    """The compiled `expand` and `step` of one model. Several threads may call them at once."""

    def __init__(self, extractor: Extractor, kernels: tuple[Any, Any]) -> None:
        self.extractor = extractor
        self.expand, self.step = kernels
        self.state_bytes = -1 if extractor.needs_text else 4 * extractor.state_width
        """Length of a state that `step` takes; -1 where features of families need more than a state."""
        self.tag = extractor.vocabulary.tag
        self._kept: list[Any] = []  # arrays whose addresses are in records, which live as long as the model
        self.idle: list[int] = []
        """Addresses of records for `expand` that no thread uses."""
        self.address = self.make_record()
        """Of the record for `step`, which the GIL protects."""

    @abstractmethod
    def record(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """A record without addresses, and the arrays whose addresses it has; with scratch memory of its own."""

    def make_record(self) -> int:
        """The address of a new record of this model, with scratch memory for one call at a time."""
        record, arrays = self.record()
        record["words"], record["tag"] = len(self.extractor.vocabulary), self.tag
        record["width"] = -1 if self.extractor.needs_text else self.extractor.state_width
        record["never_a_target"] = self.extractor.vocabulary.never_a_target
        record["hash_mask"] = self.extractor.layout.hash_mask
        for name, array in arrays.items():
            record[f"{name}_at"] = array.ctypes.data
        self._kept.append((record, arrays))
        return int(record.ctypes.data)


class SnmBeams(BeamScorer):
    """`expand` and `step` of an SNM."""

    def __init__(self, extractor: Extractor, matrix: Matrix, gate: Gate, caches: Caches) -> None:
        """`gate` as `Gate.folded` makes it."""
        self._matrix, self._gate, self._caches = matrix, gate, caches
        types = [array.dtype.name for array in (matrix.starts, matrix.long_links, matrix.singles)]
        super().__init__(extractor, beam_kernels.kernels_of(*types))

    def record(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        m, g, extractor = self._matrix, self._gate, self.extractor
        n = extractor.n_templates
        classes = np.zeros(1, np.uint16) if extractor.classes is None else extractor.classes
        model = (
            m.starts, m.data, m.long_links, m.singles, m.values, m.unigrams, m.single_of_template,
            m.parent_of_template, *g, extractor.templates, classes, *self._caches[:5],
        )  # fmt: skip
        n_caches, words = len(self._caches.words), len(extractor.vocabulary)
        rows = gate_kernels.make_rows(n + n_caches, len(g.bias))
        beam = beam_kernels.make_beam(n, extractor.span, n_caches, words)
        record = np.zeros(1, BEAM_RECORD)
        for name, value in {
            "n_templates": n,
            "units": len(g.bias),
            "span": extractor.span,
            "n_caches": n_caches,
            "n_distances": len(self._caches.codes),
            "n_starts": len(m.starts),
            "n_bytes": len(m.data),
            "n_positions": len(m.long_links),
            "n_single_types": len(m.singles),
            "n_values": len(m.values),
            "code_bytes": m.code_bytes,
            "unigram_code": m.unigram_code,
            "unigram_links": m.unigram_links,
            "unigram_sum": m.unigram_sum,
            "shift": m.shift,
            "spread_bits": m.spread.bits,
            "spread_factor": m.spread.factor,
            "spread_inverse": m.spread.inverse,
        }.items():
            record[name] = value
        arrays = dict(zip(MODEL_ARRAYS, model, strict=True))
        arrays |= {f"rows_{name}": array for name, array in zip(ROW_ARRAYS, rows, strict=True)}
        arrays |= {f"beam_{name}": array for name, array in zip(BEAM_ARRAYS, beam, strict=True)}
        return record, arrays
