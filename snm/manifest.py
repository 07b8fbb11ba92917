"""The entries of a model's manifest. docs/format.md specifies them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from snm.features.extraction import Extractor
from snm.text.vocabulary import Vocabulary
from snm.version import __version__


def describe_kind(kind: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """The first entries of every manifest."""
    words = {"words": len(vocabulary), "closed": vocabulary.closed, "document": vocabulary.document}
    return {"kind": kind, "written_by": f"snm {__version__}", "vocabulary": words}


def size_of(manifest: dict[str, Any]) -> tuple[int, str]:
    """The size of a model and its unit: links, or the parameters of a network."""
    unit = "links" if "links" in manifest else "parameters"
    return manifest[unit], unit


def describe_rows(
    extractor: Extractor, rows_by_type: np.ndarray, links: int, kind: str, how: dict[str, Any]
) -> dict[str, Any]:
    """The manifest of an SNM or backoff model; `how` has the entries of its kind."""
    layout, spec, vocabulary = extractor.layout, extractor.spec, extractor.vocabulary
    return {
        **describe_kind(kind, vocabulary),
        "features": spec.text,
        "layout": asdict(layout),
        "hash_bits": layout.hash_bits,
        "families": extractor.family_digests(),
        "rows": int(rows_by_type.sum()),
        "links": links,
        "rows_by_type": {str(t): int(n) for t, n in zip(spec.types, rows_by_type, strict=True)},
        "expected_collisions": layout.expected_collisions(rows_by_type),
        **how,
    }
