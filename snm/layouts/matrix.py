"""The matrix M on disk and in memory: pages of bytes, codes of weights, long rows. docs/format.md specifies it.

A page holds the rows of a few consecutive feature keys: their number, a mark of 24 key bits for each, a two-byte entry
for each, and records. Rows of more than MAX_IN_PAGE links are long rows, hash tables in `long_links`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ARRAYS = ("starts", "data", "long_links", "singles", "values", "unigrams")
MARK_BITS = 24
ROWS_PER_PAGE = 4  # on average; up to twice as many, since the number of pages is a power of two
INLINE = 0x8000  # an entry below this is the target of a row seen once; above, the offset of a record
MAX_UNSUMMED = 8  # rows of more links store their sum
MAX_IN_PAGE = 32  # rows of more links are long rows
WIDE, LONG = 0x40, 0x80  # flags beside the number of links: four-byte targets; a long row
LINE = 16  # positions of a line of a long row; with four-byte links a cache line
LINKS_PER_LINE = 13  # links for which a long row has a line
LONG_BYTES = 16  # record of a long row: count code, flags, number of links, sum, first position
MAX_ROWS = 255  # in a page
PADDING = 256  # zero bytes after the last page: kernels read whole vectors
CODES_PER_OCTAVE = 8  # a count code is C_i* to an eighth of an octave
_GOLDEN_RATIO = 0.6180339887498949


class Spread(NamedTuple):
    """Multiplicative hashing of targets, a bijection on `bits` bits, and how a link of a long row is packed.

    A packed link is the spread target above `code_bits` bits of code.
    """

    bits: np.int64
    factor: np.uint64
    inverse: np.uint64
    mask: np.uint64
    code_bits: np.uint64

    @classmethod
    def over(cls, words: int, code_bytes: int) -> Spread:
        bits = max(1, (words - 1).bit_length())
        factor = int((1 << bits) * _GOLDEN_RATIO) | 1
        inverse = pow(factor, -1, 1 << bits)
        return cls(
            np.int64(bits), np.uint64(factor), np.uint64(inverse), np.uint64((1 << bits) - 1), np.uint64(8 * code_bytes)
        )

    @property
    def link_type(self) -> str:
        """The dtype of a packed link."""
        return "<u4" if self.bits + int(self.code_bits) <= 32 else "<u8"


class Matrix(NamedTuple):
    """M as kernels take it: the arrays of the format, and what is derived from the manifest."""

    starts: np.ndarray  # (pages + 1,): where each page begins in `data`
    data: np.ndarray  # (bytes,) uint8
    long_links: np.ndarray  # (positions,): packed links, see Spread; 0 for an empty position
    singles: np.ndarray  # (types with rows seen once, words): weight codes of features seen once
    values: np.ndarray  # (codes,) float32: the weight of each code
    unigrams: np.ndarray  # (words,) float32: the row of the empty feature
    single_of_template: np.ndarray  # (templates,) int64: row of `singles`, -1 for none
    parent_of_template: np.ndarray  # (templates,) int64, see FeatureSpec.parents
    shift: np.uint64  # of a key to its page
    spread: Spread
    code_bytes: np.int64
    unigram_code: np.uint8  # count code of the empty feature
    unigram_links: np.float32
    unigram_sum: np.float32


def count_codes(feature_counts: np.ndarray) -> np.ndarray:
    """Count codes: C_i* in eighths of an octave, 255 for 2^32 and more. (rows,) uint8"""
    codes = np.rint(CODES_PER_OCTAVE * np.log2(feature_counts.astype(np.float64)))
    capped: np.ndarray = np.minimum(codes, 255).astype(np.uint8)
    return capped


def page_bits(rows: int) -> int:
    """The logarithm of the number of pages of a matrix with this many rows."""
    return max(1, (rows // ROWS_PER_PAGE).bit_length() - 1)
