"""What kernels that score word by word are handed: one record with a model's scalars and its arrays' addresses.

Numba unpacks every array of a call anew, which takes longer than scoring a word. So a call passes one record, made
once, and the kernel makes array views from the addresses in it.
"""

from __future__ import annotations

import numpy as np

_SCALARS = [
    ("words", "<i8"),  # size of the vocabulary
    ("n_templates", "<i8"),
    ("units", "<i8"),  # of the gate
    ("tag", "<i8"),  # of the vocabulary, see `Vocabulary.tag`
    ("width", "<i8"),  # words of a state; -1 where the features cannot be computed from a state's words
    ("span", "<i8"),  # words of a state that features depend on; caches may see more
    ("n_caches", "<i8"),
    ("n_distances", "<i8"),  # of the caches' arrays
    ("n_starts", "<i8"),
    ("n_bytes", "<i8"),  # of the matrix data
    ("n_positions", "<i8"),  # of the long links
    ("n_single_types", "<i8"),
    ("n_values", "<i8"),
    ("never_a_target", "<i8"),
    ("code_bytes", "<i8"),
    ("unigram_code", "<i8"),
    ("unigram_links", "<f4"),
    ("unigram_sum", "<f4"),
    ("shift", "<u8"),
    ("hash_mask", "<u8"),
    ("spread_bits", "<i8"),
    ("spread_factor", "<u8"),
    ("spread_inverse", "<u8"),
]
MODEL_ARRAYS = (
    "starts", "data", "long_links", "singles", "values", "unigrams", "single_of_template", "parent_of_template",
    "gate_hidden", "gate_bias", "gate_output", "gate_offset", "templates", "classes",
    "cache_adjacent", "cache_words", "cache_decay", "cache_sums", "cache_codes",
)  # fmt: skip
ROW_ARRAYS = (
    "first", "last", "event", "code", "length", "row_sum", "weight", "scale", "inputs", "hidden", "columns", "output",
    "sums",
)  # fmt: skip
BEAM_ARRAYS = (
    "keys", "records", "first_with", "scale", "members", "which", "hashes", "hashed_words", "read",
    "masses", "cached",
)  # fmt: skip
"""Names of the arrays whose addresses a record has: of the model, of `kernels.gate.EventRows` and `kernels.beams.Beam`
scratch memory, in the order of those tuples."""

BEAM_RECORD = np.dtype(
    [
        *_SCALARS,
        *((f"{name}_at", "<i8") for name in MODEL_ARRAYS),
        *((f"rows_{name}_at", "<i8") for name in ROW_ARRAYS),
        *((f"beam_{name}_at", "<i8") for name in BEAM_ARRAYS),
        ("word", "<u8"),  # argument and result of `step`
        ("score", "<f8"),
    ]
)

BACKOFF_ARRAYS = "features", "directory", "offsets", "targets", "probabilities", "backoffs", "templates", "keys", "rows"
"""Of a backoff model, and scratch memory for one key and one row of each order."""

BACKOFF_RECORD = np.dtype(
    [
        *((name, "<i8") for name in ("words", "tag", "width", "never_a_target", "n_rows", "n_entries", "n_links")),
        *((name, "<u8") for name in ("hash_mask", "low", "shift")),
        *((f"{name}_at", "<i8") for name in BACKOFF_ARRAYS),
    ]
)
