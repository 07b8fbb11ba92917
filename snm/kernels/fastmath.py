"""Exponentials and logarithms without library calls or branches, so that LLVM vectorises the loops around them.

Each states its range and precision; tests compare them with NumPy over the whole range.
"""

import math

import numpy as np

from snm.kernels.compile import fused_helper, helper
from snm.kernels.simd import as_bits, as_double, as_float, as_long
from snm.layouts.weights import MAX_EXPONENT

# float64
_LOG2_E, _LN_2 = 1 / math.log(2), math.log(2)
_E2, _E3, _E4, _E5, _E6, _E7, _E8 = (1 / math.factorial(n) for n in range(2, 9))
_ROUNDING = 1.5 * 2.0**52
_BELOW_ONE = 0x3FF0000000000000 - 0x3FE6A09E667F3BCD  # the bits of 1 less those of the root of 1/2
_LOG10_2, _LN_10 = math.log10(2), math.log(10)

# float32
_LOG2_E_32, _LN_2_32, _ZERO = np.float32(1 / math.log(2)), np.float32(math.log(2)), np.float32(0)
_ONE, _F2, _F3, _F4, _F5, _F6 = (np.float32(1 / math.factorial(n)) for n in range(1, 7))
_ROOT_HALF = np.float32(math.sqrt(0.5))
_CEPHES_LOG = tuple(
    np.float32(c)
    for c in (
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )
)  # fmt: skip


@fused_helper
def _exp_series(r):
    return 1 + r * (1 + r * (_E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * (_E7 + r * _E8)))))))


@helper
def clamped_exp(x):
    """exp(x) of a float64 clamped to [-MAX_EXPONENT, MAX_EXPONENT], to one part in 10^9.

    Adding `_ROUNDING` rounds a number to a whole one, whose bits are then the lowest bits of the sum; shifted, they
    are added to the exponent of the series. With this and the fused series a training event takes a tenth less time
    than with `math.floor`.
    """
    x = max(min(x, MAX_EXPONENT), -MAX_EXPONENT) * _LOG2_E
    shifted = x + _ROUNDING
    r = (x - (shifted - _ROUNDING)) * _LN_2
    return as_double(as_long(_exp_series(r)) + (as_long(shifted) << 52))


@fused_helper
def log10_in_place(numbers):
    """Replace positive float64 numbers by their log10, to one part in 10^15.

    With x = m 2^e and m between sqrt(1/2) and sqrt(2), the series of log(m) in (m - 1) / (m + 1).
    """
    for i in range(len(numbers)):
        bits = as_long(numbers[i])
        e = np.int64((bits + _BELOW_ONE) >> 52) - 1023
        m = as_double(bits - (e << 52))
        z = (m - 1.0) / (m + 1.0)
        y = z * z
        series = 1.0 / 19.0
        for n in range(17, 0, -2):
            series = series * y + 1.0 / n
        numbers[i] = e * _LOG10_2 + (2.0 / _LN_10) * z * series


@helper
def log_float32(x):
    """The natural logarithm of a positive float32, to its precision, by the series of the Cephes library."""
    bits = as_bits(x)
    m = as_float((bits & np.uint32(0x7FFFFF)) | np.uint32(0x3F000000))
    small = m < _ROOT_HALF
    e = np.float32(np.int32(bits >> np.uint32(23)) - np.int32(126)) - (_ONE if small else _ZERO)
    r = m + m - _ONE if small else m - _ONE
    series = _CEPHES_LOG[0]
    for i in range(1, 9):
        series = series * r + _CEPHES_LOG[i]
    return e * _LN_2_32 + (r + r * r * (r * series - np.float32(0.5)))


@helper
def exp_float32(x):
    """exp(x) of a float32 between -80 and 80, with a relative error below (2 + |x|) / 2^23."""
    scaled = x * _LOG2_E_32
    whole = np.int32(np.int32(scaled + np.float32(127.5)) - np.int32(127))  # Numba makes 64 bits of a difference
    r = (scaled - np.float32(whole)) * _LN_2_32
    series = _F6
    for factor in (_F5, _F4, _F3, _F2, _ONE, _ONE):
        series = series * r + factor
    return series * as_float(np.uint32(np.uint32(whole + np.int32(127)) << np.uint32(23)))
