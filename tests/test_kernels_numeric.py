"""Arithmetic helpers and intrinsics of the kernels, each against a twin in plain Python or NumPy."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from snm.kernels import fastmath, simd
from snm.kernels.bits import floor_log2
from snm.kernels.simd import TILE
from snm.layouts.gate import INPUTS, LANES
from snm.layouts.matrix import LINE
from snm.layouts.weights import MAX_EXPONENT

F4, F8 = np.finfo(np.float32), np.finfo(np.float64)
F4_EPSILON = float(F4.eps)


@njit
def clamped_exps(x, into):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        into[i] = fastmath.clamped_exp(x[i])


@njit
def logs_float32(x, into):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        into[i] = fastmath.log_float32(x[i])


@njit
def exps_float32(x, into):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        into[i] = fastmath.exp_float32(x[i])


@njit
def log10s(numbers):  # type: ignore[no-untyped-def]
    fastmath.log10_in_place(numbers)


def every(function: Callable[..., None], x: np.ndarray) -> np.ndarray:
    """A helper's values, as float64."""
    into = np.empty_like(x)
    function(x, into)
    return into.astype(np.float64)


def float32_samples() -> np.ndarray:
    """Positive normal numbers: each power of two, its neighbours, and 2000 between it and the next."""
    powers = 2.0 ** np.arange(F4.minexp, F4.maxexp)
    between = powers[:, None] * np.random.default_rng(1).uniform(1, 2, (len(powers), 2000))
    near = np.nextafter(powers.astype(np.float32), np.float32(0)), np.nextafter(powers.astype(np.float32), F4.max)
    x = np.concatenate([powers, between.ravel(), *near, [F4.tiny, F4.max]]).astype(np.float32)
    kept: np.ndarray = x[(x >= F4.tiny) & np.isfinite(x)]
    return kept


def float64_samples() -> np.ndarray:
    powers = 2.0 ** np.arange(F8.minexp, F8.maxexp)
    between = powers[:, None] * np.random.default_rng(2).uniform(1, 2, (len(powers), 200))
    near_1 = 1 + np.random.default_rng(3).uniform(-0.5, 0.5, 10_000) ** 9
    near = np.nextafter(powers[1:], 0), np.nextafter(powers, F8.max)
    x = np.concatenate([powers, between.ravel(), near_1, *near, [F8.tiny, F8.max]])
    kept: np.ndarray = x[np.isfinite(x)]
    return kept


class TestFastmath:
    def test_clamped_exp_over_its_whole_range(self) -> None:
        whole = np.arange(-MAX_EXPONENT, MAX_EXPONENT + 1)
        powers = 2.0 ** np.arange(-40, 5)
        x = np.concatenate([np.linspace(-MAX_EXPONENT, MAX_EXPONENT, 500_001), whole, powers, -powers, [0.0]])
        expected = np.exp(x)
        assert np.abs(every(clamped_exps, x) / expected - 1).max() < 1e-9

    def test_clamped_exp_is_constant_beyond_its_range(self) -> None:
        x = np.array([MAX_EXPONENT, 31, 1e6, 1e300, math.inf])
        assert every(clamped_exps, x) == pytest.approx(math.exp(MAX_EXPONENT), rel=1e-9)
        assert every(clamped_exps, -x) == pytest.approx(math.exp(-MAX_EXPONENT), rel=1e-9)

    def test_log10_in_place_over_all_normal_numbers(self) -> None:
        x = float64_samples()
        found = x.copy()
        log10s(found)
        expected = np.log10(x)
        assert (np.abs(found - expected) <= 1e-15 * np.abs(expected)).all()
        assert found[x == 1.0].tolist() == [0.0] * np.count_nonzero(x == 1.0)

    @pytest.mark.parametrize("n", [0, 1, 7, 100])
    def test_log10_in_place_of_any_number_of_numbers(self, n: int) -> None:
        x = np.random.default_rng(n).random(n)
        found = x.copy()
        log10s(found)
        assert found == pytest.approx(np.log10(x), rel=1e-15)

    def test_log_float32_over_all_normal_numbers(self) -> None:
        x = float32_samples()
        expected = np.log(x.astype(np.float64))
        assert (np.abs(every(logs_float32, x) - expected) <= F4_EPSILON * np.abs(expected)).all()

    def test_exp_float32_over_its_whole_range(self) -> None:
        """The rounding of x / ln 2 becomes a relative error of the result, which grows with |x|."""
        powers = 2.0 ** np.arange(-40, 7)
        x = np.concatenate([np.linspace(-80, 80, 400_001), np.arange(-80, 81), powers, -powers, [0.0]])
        x = x[np.abs(x) <= 80].astype(np.float32)
        expected = np.exp(x.astype(np.float64))
        error = np.abs(every(exps_float32, x) / expected - 1)
        assert (error <= F4_EPSILON * (2 + np.abs(x))).all()


@njit
def floor_log2s(x, into):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        into[i] = floor_log2(x[i])


@njit
def zeros_and_bits(x, into):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        into[i, 0], into[i, 1] = simd.leading_zeros(x[i]), simd.lowest_bit(x[i])


@njit
def read_all(data, i):  # type: ignore[no-untyped-def]
    return simd.read_u2(data, i), simd.read_u4(data, i), simd.read_u8(data, i)


@njit
def bits_of(f4, f8):  # type: ignore[no-untyped-def]
    return simd.as_bits(f4), simd.as_long(f8)


@njit
def of_bits(u4, i8):  # type: ignore[no-untyped-def]
    return simd.as_float(u4), simd.as_double(i8)


@njit
def matching(data, i, mark):  # type: ignore[no-untyped-def]
    return simd.matches(data, i, mark)


@njit
def equal_8_of_2(data, i, wanted):  # type: ignore[no-untyped-def]
    return simd.equal_numbers(data, i, wanted, 8, 2)


@njit
def equal_8_of_4(data, i, wanted):  # type: ignore[no-untyped-def]
    return simd.equal_numbers(data, i, wanted, 8, 4)


@njit
def equal_32_of_2(data, i, wanted):  # type: ignore[no-untyped-def]
    return simd.equal_numbers(data, i, wanted, 32, 2)


@njit
def equal_32_of_4(data, i, wanted):  # type: ignore[no-untyped-def]
    return simd.equal_numbers(data, i, wanted, 32, 4)


@njit
def equal_64_of_1(data, i, wanted):  # type: ignore[no-untyped-def]
    return simd.equal_numbers(data, i, wanted, 64, 1)


@njit
def links_equal(links, first, shift, wanted):  # type: ignore[no-untyped-def]
    return simd.equal_links(links, first, shift, wanted)


EQUAL = {(8, 2): equal_8_of_2, (8, 4): equal_8_of_4, (32, 2): equal_32_of_2, (32, 4): equal_32_of_4,
         (64, 1): equal_64_of_1}  # fmt: skip
bytes_of_any_kind = st.binary(min_size=140, max_size=140)
"""Random bytes; and few different ones, so that numbers are equal."""
repeated_bytes = st.lists(st.sampled_from([0, 1, 255]), min_size=140, max_size=140).map(bytes)


def little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(data), np.uint8)


def bits_where(equal: list[bool]) -> int:
    return sum(1 << i for i, here in enumerate(equal) if here)


class TestBits:
    def test_floor_log2(self) -> None:
        x = [1, *(2**k + d for k in range(1, 63) for d in (-1, 0, 1)), 2**63 - 1]
        into = np.empty(len(x), np.int64)
        floor_log2s(np.array(x, np.int64), into)
        assert into.tolist() == [n.bit_length() - 1 for n in x]
        floor_log2s(np.array([1, 7, 2**32 - 1], np.uint32), into)
        assert into[:3].tolist() == [0, 2, 31]

    @given(st.lists(st.integers(-(2**63), 2**63 - 1).filter(bool), min_size=1))
    def test_leading_zeros_and_lowest_bit(self, numbers: list[int]) -> None:
        numbers += [1, -1, 2**62, -(2**63)]
        into = np.empty((len(numbers), 2), np.int64)
        zeros_and_bits(np.array(numbers, np.int64), into)
        for n, (zeros, lowest) in zip(numbers, into.tolist(), strict=True):
            text = f"{n % 2**64:064b}"
            assert zeros == len(text) - len(text.lstrip("0"))
            assert lowest == len(text) - len(text.rstrip("0"))

    @given(st.floats(width=32, allow_nan=False), st.floats(allow_nan=False))
    def test_bits_of_floats_and_back(self, f4: float, f8: float) -> None:
        found = bits_of(np.float32(f4), f8)
        expected = struct.unpack("<Iq", struct.pack("<fd", f4, f8))
        assert tuple(map(int, found)) == expected
        assert of_bits(np.uint32(found[0]), np.int64(found[1])) == (f4, f8)


class TestBytes:
    @given(bytes_of_any_kind, st.integers(0, 132))
    def test_reads_are_little_endian_at_any_byte(self, data: bytes, i: int) -> None:
        assert read_all(as_array(data), i) == tuple(little(data, i, size) for size in (2, 4, 8))

    @given(bytes_of_any_kind | repeated_bytes, st.integers(0, 108), st.integers(0, simd.MARKS - 1))
    def test_matches(self, data: bytes, i: int, nth: int) -> None:
        """The mark of one row, and one that no row has."""
        for mark in (little(data, i + 3 * nth, 3), 1 << 24):
            expected = bits_where([little(data, i + 3 * k, 3) == mark for k in range(simd.MARKS)])
            assert matching(as_array(data), i, np.uint32(mark)) == expected

    @pytest.mark.parametrize(("count", "size"), EQUAL)
    @given(data=bytes_of_any_kind | repeated_bytes, i=st.integers(0, 12), nth=st.integers(0, 63))
    def test_equal_numbers(self, count: int, size: int, data: bytes, i: int, nth: int) -> None:
        for wanted in (little(data, i + nth % count * size, size), 77):
            expected = bits_where([little(data, i + size * k, size) == wanted for k in range(count)])
            assert EQUAL[count, size](as_array(data), i, np.uint32(wanted)) % 2**64 == expected

    @pytest.mark.parametrize(("count", "size"), EQUAL)
    def test_equal_numbers_of_a_full_vector_and_of_an_empty_one(self, count: int, size: int) -> None:
        data = np.zeros(count * size, np.uint8)
        assert EQUAL[count, size](data, 0, np.uint32(0)) % 2**64 == 2**count - 1
        assert EQUAL[count, size](data, 0, np.uint32(1)) == 0

    @pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
    @given(targets=st.lists(st.integers(0, 2**16 - 1), min_size=40, max_size=40), data=st.data())
    def test_equal_links(self, dtype: type, targets: list[int], data: st.DataObject) -> None:
        first, shift = data.draw(st.integers(0, 40 - LINE)), data.draw(st.sampled_from([8, 16]))
        links = [target << shift | data.draw(st.integers(0, 2**shift - 1)) for target in targets]
        for wanted in (targets[first + data.draw(st.integers(0, LINE - 1))], 2**16 - 1, 0):
            expected = bits_where([link >> shift == wanted for link in links[first : first + LINE]])
            assert links_equal(np.array(links, dtype), first, np.uint64(shift), np.uint64(wanted)) == expected


@njit
def prefetch_all(array):  # type: ignore[no-untyped-def]
    for i in range(len(array)):
        simd.prefetch(array, i)


@pytest.mark.parametrize("shape", [(0,), (1,), (1000,), (7, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.float32])
def test_prefetch_changes_nothing(shape: tuple[int, ...], dtype: type) -> None:
    array: np.ndarray = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    before = array.copy()
    prefetch_all(array)
    prefetch_all(array[::2])
    assert np.array_equal(array, before)


@njit
def products(sums, events, start, stop, weights, first, inputs, length):  # type: ignore[no-untyped-def]
    simd.add_products(sums, events, start, stop, weights, first, inputs, length)


@njit
def rectified(sums, columns, length, count):  # type: ignore[no-untyped-def]
    simd.rectify(sums, columns, length, count)


@njit
def sum_few(sums, columns, weights, template, start, length):  # type: ignore[no-untyped-def]
    simd.sum_columns(sums, columns, weights, template, start, length, LANES)


@njit
def sum_tile(sums, columns, weights, template, start, length):  # type: ignore[no-untyped-def]
    simd.sum_columns(sums, columns, weights, template, start, length, TILE)


units_of_gates = st.sampled_from([LANES, 2 * LANES, 4 * LANES])
seeds = st.integers(0, 2**32)


def normals(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.normal(size=shape).astype(np.float32)


class TestGate:
    @given(units_of_gates, seeds, st.data())
    def test_add_products(self, units: int, seed: int, data: st.DataObject) -> None:
        random = np.random.default_rng(seed)
        start = data.draw(st.integers(0, 50))
        stop = data.draw(st.integers(start, 100))
        sums, weights, inputs = normals(random, 64, units), normals(random, 5 * INPUTS, units), normals(random, 3, 100)
        events, first = random.permutation(np.arange(100) % 64).astype(np.uint64), 4 * int(random.integers(5))
        expected = sums.astype(np.float64)
        for i in range(start, stop):
            x = np.append(inputs[:, i], 1).astype(np.float64)
            expected[int(events[i])] += x @ weights[first : first + INPUTS]
        products(sums, events, start, stop, weights, first, inputs, units)
        assert sums == pytest.approx(expected, abs=1e-5)

    @given(units_of_gates, seeds, st.integers(0, TILE))
    def test_rectify(self, units: int, seed: int, count: int) -> None:
        random = np.random.default_rng(seed)
        sums, columns = normals(random, TILE, units), np.full((units, TILE), np.nan, np.float32)
        rectified(sums, columns, units, count)
        written = -(-count // LANES) * LANES
        assert np.array_equal(columns[:, :written], np.maximum(sums[:written], 0).T)
        assert np.isnan(columns[:, written:]).all()

    @pytest.mark.parametrize(("function", "width"), [(sum_few, LANES), (sum_tile, TILE)])
    @given(units=units_of_gates, seed=seeds)
    def test_sum_columns(self, function: Callable[..., None], width: int, units: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        columns, weights, start = normals(random, units, TILE), normals(random, 3, units), np.float32(0.25)
        sums = np.full(TILE, np.nan, np.float32)
        for template in range(3):
            function(sums, columns, weights, template, start, units)
            expected = 0.25 + weights[template].astype(np.float64) @ columns[:, :width]
            assert sums[:width] == pytest.approx(expected, abs=1e-5)
            assert np.isnan(sums[width:]).all()


@njit
def steps_3_and_2(table, slots, row, column, rate, g, h):  # type: ignore[no-untyped-def]
    simd.take_adagrad_steps(table, slots, row, column, (1, 2, 3), (4, 5), rate, g, h)


@njit
def steps_1(table, slots, row, column, rate, g, h):  # type: ignore[no-untyped-def]
    simd.take_adagrad_steps(table, slots, row, column, (1,), (), rate, g, h)


@njit
def steps_6_and_6(table, slots, row, column, rate, g, h):  # type: ignore[no-untyped-def]
    simd.take_adagrad_steps(table, slots, row, column, (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6), rate, g, h)


def slow_steps(table: np.ndarray, slots: list[int], gradients: list[float], rate: float) -> None:
    """Steps of AdaGrad, four weights at a time, which are read before the first of them is written."""
    for at in range(0, len(slots), 4):
        moved = []
        for slot, gradient in zip(slots[at : at + 4], gradients[at : at + 4], strict=True):
            theta, squares = table[slot].astype(np.float64)
            squares += gradient * gradient
            moved.append((slot, theta - rate * gradient / math.sqrt(squares), squares))
        for slot, theta, squares in moved:
            table[slot] = theta, squares


@pytest.mark.parametrize(("function", "n", "m"), [(steps_1, 1, 0), (steps_3_and_2, 3, 2), (steps_6_and_6, 6, 6)])
@given(seed=seeds, g=st.floats(-4, 4, width=32), h=st.floats(-4, 4, width=32), size=st.sampled_from([8, 1000]))
def test_take_adagrad_steps(function: Any, n: int, m: int, seed: int, g: float, h: float, size: int) -> None:
    """Slots of a small table repeat."""
    random = np.random.default_rng(seed)
    table = np.stack([normals(random, size), random.uniform(0.1, 5, size).astype(np.float32)], axis=1)
    expected, slots = table.copy(), random.integers(0, size, (4, 20)).astype(np.uint32)
    row, column = int(random.integers(4)), int(random.integers(20 - n - m))
    function(table, slots, row, column, np.float32(0.1), np.float32(g), np.float32(h))
    slow_steps(expected, slots[row, column : column + n + m].tolist(), [g] * n + [h] * m, 0.1)
    assert table == pytest.approx(expected, rel=1e-6, abs=1e-6)
