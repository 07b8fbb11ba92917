"""Opening the matrix of a model folder: its arrays are mapped, not read.

What is small is validated here: lengths, the weights of codes, the row of the empty feature. What pages and long rows
say is validated by the kernels that follow it, see `snm.kernels.matrix`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from snm.arguments import shown
from snm.errors import FormatError
from snm.features.extraction import Extractor
from snm.layouts.matrix import ARRAYS, LINE, PADDING, Matrix, Spread

MAX_SUM = 1e38  # of a row: it is a float32


def open_matrix(load: Callable[..., np.ndarray], description: dict[str, Any], extractor: Extractor) -> Matrix:
    """The matrix whose arrays `load` opens by name and dtypes; `description` is the entry "pages" of the manifest."""
    words = len(extractor.vocabulary)
    types, code_bytes = description["single_types"], description["code_bytes"]
    spread = Spread.over(words, code_bytes)
    dtypes = {
        "starts": ("<u4", "<u8"), "data": ("|u1",), "long_links": (spread.link_type,),
        "singles": (np.dtype(f"<u{code_bytes}").str,), "values": ("<f4",), "unigrams": ("<f4",),
    }  # fmt: skip
    arrays = {name: load(name, *dtypes[name]) for name in ARRAYS}
    if len(set(types)) < len(types) or max(types, default=0) >= len(extractor.spec.types):
        raise FormatError(f"single_types {shown(types)} are no types of the features; restore or rebuild the model")
    if (
        len(arrays["starts"]) != (1 << description["bits"]) + 1
        or len(arrays["data"]) < int(arrays["starts"][-1]) + PADDING
        or len(arrays["unigrams"]) != words
        or len(arrays["singles"]) != len(types) * words
        or len(arrays["values"]) != 1 << 8 * code_bytes
        or len(arrays["long_links"]) % LINE
    ):
        raise FormatError("the sizes of the matrix arrays contradict the manifest; restore or rebuild the model")
    values, unigrams = arrays["values"], arrays["unigrams"]
    with np.errstate(all="ignore"):
        total = unigrams.sum(dtype=np.float64)
    if not (values.min() > 0 and values.max() < MAX_SUM):
        raise FormatError("a weight is not above zero, or no number; restore or rebuild the model")
    if not (unigrams.min() >= 0 and 0 < total < MAX_SUM):
        raise FormatError("the empty feature's row is damaged; restore or rebuild the model")
    arrays["singles"] = arrays["singles"].reshape(len(types), words if types else 0)
    return Matrix(
        **arrays,
        single_of_template=np.array(
            [types.index(t.type_index) if t.type_index in types else -1 for t in extractor.spec.templates], np.int64
        ),
        parent_of_template=parents_of(description, extractor),
        shift=np.uint64(64 - description["bits"]),
        spread=spread,
        code_bytes=np.int64(code_bytes),
        unigram_code=np.uint8(description["unigram_code"]),
        unigram_links=np.float32(np.count_nonzero(arrays["unigrams"])),
        unigram_sum=np.float32(total),
    )


def parents_of(description: dict[str, Any], extractor: Extractor) -> np.ndarray:
    """For each template, one whose feature is stored if the template's own is; 0 for none. (templates,) int64"""
    found = np.array(extractor.spec.parents, np.int64)
    return np.zeros_like(found) if description.get("orphans") else found
