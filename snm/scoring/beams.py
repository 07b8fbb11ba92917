"""Word-by-word scoring of an SNM: the records and scratch memory that the beam kernels are handed."""

from __future__ import annotations

from typing import Any

import numpy as np

from snm.features.extraction import Extractor
from snm.kernels import beams as beam_kernels
from snm.kernels import gate as gate_kernels
from snm.layouts.beams import BEAM_ARRAYS, BEAM_RECORD, MODEL_ARRAYS, ROW_ARRAYS
from snm.layouts.gate import Gate
from snm.layouts.matrix import Matrix


class BeamScorer:
    """The compiled `expand` and `step` of one model. Several threads may call them at once."""

    def __init__(self, extractor: Extractor, matrix: Matrix, gate: Gate) -> None:
        """`gate` as `Gate.folded` makes it."""
        self._extractor, self._matrix, self._gate = extractor, matrix, gate
        types = [array.dtype.name for array in (matrix.starts, matrix.long_links, matrix.singles)]
        self.expand, self.step = beam_kernels.kernels_of(*types)
        self.state_bytes = -1 if extractor.has_families else 4 * extractor.span
        """Length of a state that `step` takes; -1 where features of families need more than a state."""
        self.tag = extractor.vocabulary.tag
        self._kept: list[Any] = []  # arrays whose addresses are in records, which live as long as the model
        self.idle: list[int] = []
        """Addresses of records for `expand` that no thread uses."""
        self.address = self.make_record()
        """Of the record for `step`, which the GIL protects."""

    def make_record(self) -> int:
        """The address of a new record of this model, with scratch memory for one call at a time."""
        m, g, extractor = self._matrix, self._gate, self._extractor
        n, width = extractor.n_templates, extractor.span
        classes = np.zeros(1, np.uint16) if extractor.classes is None else extractor.classes
        model = (
            m.starts, m.data, m.long_links, m.singles, m.values, m.unigrams, m.single_of_template,
            m.parent_of_template, *g, extractor.templates, classes,
        )  # fmt: skip
        rows, beam = gate_kernels.make_rows(n, len(g.bias)), beam_kernels.make_beam(n, width)
        record = np.zeros(1, BEAM_RECORD)
        for name, value in {
            "words": len(extractor.vocabulary),
            "n_templates": n,
            "units": len(g.bias),
            "tag": extractor.vocabulary.tag,
            "width": -1 if extractor.has_families else width,
            "n_starts": len(m.starts),
            "n_bytes": len(m.data),
            "n_positions": len(m.long_links),
            "n_single_types": len(m.singles),
            "n_values": len(m.values),
            "never_a_target": extractor.vocabulary.never_a_target,
            "code_bytes": m.code_bytes,
            "unigram_code": m.unigram_code,
            "unigram_links": m.unigram_links,
            "unigram_sum": m.unigram_sum,
            "shift": m.shift,
            "hash_mask": extractor.layout.hash_mask,
            "spread_bits": m.spread.bits,
            "spread_factor": m.spread.factor,
            "spread_inverse": m.spread.inverse,
        }.items():
            record[name] = value
        for prefix, names, arrays in (
            ("", MODEL_ARRAYS, model),
            ("rows_", ROW_ARRAYS, rows),
            ("beam_", BEAM_ARRAYS, beam),
        ):
            for name, array in zip(names, arrays, strict=True):
                record[f"{prefix}{name}_at"] = array.ctypes.data
        self._kept.append((record, model, rows, beam))
        return int(record.ctypes.data)
