"""Pruning at the end of training: the matrix that was just written becomes smaller before its gate is learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snm.features.extraction import Extractor
from snm.layouts.gate import gate_size
from snm.layouts.matrix import ARRAYS
from snm.manifest import spelling_bytes
from snm.matrix.reading import open_matrix
from snm.progress import Notify, Progress
from snm.pruning.budget import Budget
from snm.pruning.matrix import Kept, MatrixPruner, describe_pruned
from snm.storage import NPY_HEADER, ModelWriter

MANIFEST_BYTES = 8000  # with lists of perplexities
WHOLE = "whole-"  # before the names of the arrays of the larger matrix


@dataclass(frozen=True)
class Pruned:
    """What is left, and how it came about."""

    kept: Kept
    words: int  # links of the empty feature
    size: int

    def described(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest of the larger model as that of the smaller one."""
        return describe_pruned(manifest, self.kept, self.words, Budget(size=self.size))


def rest_of(extractor: Extractor, single_types: int, units: int, code_bytes: int, folder: Path) -> int:
    """Bytes of everything that is no page, at most. `folder` has the spelling model."""
    words, templates = len(extractor.vocabulary), extractor.n_templates + len(extractor.spec.caches)
    per_word = 4 + single_types * code_bytes + (2 if extractor.classes is not None else 0)
    arrays = words * per_word + 4 * gate_size(templates, units) + (4 << 8 * code_bytes)
    lines = len(extractor.vocabulary.lines) + spelling_bytes(folder)
    return lines + arrays + 8 * NPY_HEADER + MANIFEST_BYTES


def check_rest(size: int, extractor: Extractor, units: int, code_bytes: int, folder: Path) -> None:
    """Raise an error if a model without any page is larger than `size`."""
    MatrixPruner.check_rest(
        Budget(size=size), rest_of(extractor, 0, units, code_bytes, folder), len(extractor.vocabulary)
    )


def prune_written(
    writer: ModelWriter, extractor: Extractor, pages: dict[str, Any], size: int, units: int, threads: int,
    progress: Progress, notify: Notify,
) -> tuple[dict[str, Any], Pruned | None]:  # fmt: skip
    """Replace the matrix of a model that is being written by one that fits; None if it fits already."""
    for name in ARRAYS:
        writer.rename(name, WHOLE + name)
    matrix = open_matrix(lambda name, *types: writer.load(WHOLE + name, *types), pages, extractor)
    rest = rest_of(extractor, len(pages["single_types"]), units, int(pages["code_bytes"]), writer.folder)
    fits = rest + matrix.starts.nbytes + matrix.data.nbytes + matrix.long_links.nbytes <= size
    made: tuple[dict[str, Any], Pruned | None] = pages, None
    if not fits:
        words, budget = int(np.count_nonzero(matrix.unigrams)), Budget(size=size)
        pruner = MatrixPruner(matrix, threads, progress)
        kept = pruner.keep(budget, rest, words)
        made = pruner.write(kept, writer, pages), Pruned(kept, words, size)
        notify(f"{words + kept.links:,} links left within {size:,} bytes")
        del pruner
    del matrix
    for name in ARRAYS:
        if fits:
            writer.rename(WHOLE + name, name)
        else:
            writer.drop(WHOLE + name)
    return made
