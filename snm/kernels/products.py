"""Products of rows with weights, in 16-bit integers. See `snm.baselines.neural.products`.

Sums of integers are exact: a row has the same products on every machine, whatever the other rows are. LLVM makes one
instruction of 32 products and 16 sums where the processor has it (AVX-512 VNNI); elsewhere it takes a few.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from snm.kernels.compile import helper, kernel, max_helper

LANES = 16  # outputs of a vector
VECTORS = 4
OUTPUTS = LANES * VECTORS
"""Outputs of a tile of weights. Weights are (tiles, pairs of inputs, OUTPUTS, 2) int16."""
ROWS = 6  # whose products with a tile are computed together: 24 vectors of sums, in 32 registers
BLOCK = 96  # rows that are multiplied with all tiles before the next ones are: they stay in the second cache
FEW = 2  # rows up to which each is computed alone

MAX_SUM = (1 << 31) - 1

_NUMBER, _LONG = ir.IntType(32), ir.IntType(64)
_SUMS, _PAIRS = ir.VectorType(_NUMBER, LANES), ir.VectorType(ir.IntType(16), 2 * LANES)
_WIDE = ir.VectorType(_NUMBER, 2 * LANES)


def _chosen(numbers):
    return ir.Constant(ir.VectorType(_NUMBER, len(numbers)), [_NUMBER(i) for i in numbers])


def _add_pairs(builder, sums, a, b):
    """sums + a0 b0 + a1 b1 in each lane, of 32-bit lanes with two numbers each. LLVM knows the pattern."""
    left, right = (builder.sext(builder.bitcast(x, _PAIRS), _WIDE) for x in (a, b))
    products = builder.mul(left, right)
    even, odd = (builder.shuffle_vector(products, products, _chosen(range(i, 2 * LANES, 2))) for i in (0, 1))
    return builder.add(sums, builder.add(even, odd))


def _load(builder, pointer, at):
    loaded = builder.load(builder.bitcast(builder.gep(pointer, [at]), _SUMS.as_pointer()))
    loaded.align = 4
    return loaded


def _sum_vectors(builder, rows, weights, pairs, vectors):
    """Sums over all pairs of rows[i] times each of `vectors` vectors of a tile of weights. Pointers to pairs."""
    before, loop, end = builder.block, builder.append_basic_block("pairs"), builder.append_basic_block("end")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_LONG)
    k.add_incoming(_LONG(0), before)
    sums = [builder.phi(_SUMS) for _ in range(len(rows) * vectors)]
    for total in sums:
        total.add_incoming(ir.Constant(_SUMS, None), before)
    line = builder.gep(weights, [builder.mul(k, _LONG(OUTPUTS))])
    loaded = [_load(builder, line, _LONG(LANES * v)) for v in range(vectors)]
    after = []
    for i, row in enumerate(rows):
        pair = builder.load(builder.gep(row, [k]))
        one = builder.insert_element(ir.Constant(_SUMS, ir.Undefined), pair, _NUMBER(0))
        repeated = builder.shuffle_vector(one, one, _chosen([0] * LANES))
        after += [_add_pairs(builder, sums[i * vectors + v], repeated, loaded[v]) for v in range(vectors)]
    following = builder.add(k, _LONG(1))
    k.add_incoming(following, loop)
    for total, new in zip(sums, after, strict=True):
        total.add_incoming(new, loop)
    builder.cbranch(builder.icmp_signed("<", following, pairs), loop, end)
    builder.position_at_end(end)
    return after


@intrinsic(prefer_literal=True)
def multiply_tile(typing_context, rows, which, first, count, weights, tile, sums):
    """sums[i] = the products of row which[first + i] with a tile of weights, for i below the constant `count`.

    rows: (n, 2 * pairs) int16; sums: (ROWS, OUTPUTS) int32
    """
    n = count.literal_value

    def generate(context, builder, signature, arguments):
        made = [context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 4, 6)]
        inputs, numbers, packed, into = made
        pairs = builder.udiv(cgutils.unpack_tuple(builder, inputs.shape)[1], _LONG(2))
        start = builder.gep(numbers.data, [context.cast(builder, arguments[2], signature.args[2], types.intp)])
        base = builder.bitcast(inputs.data, _NUMBER.as_pointer())
        of_rows = [
            builder.gep(base, [builder.mul(builder.load(builder.gep(start, [_LONG(i)])), pairs)]) for i in range(n)
        ]  # fmt: skip
        at = builder.mul(context.cast(builder, arguments[5], signature.args[5], types.intp), pairs)
        own = builder.bitcast(packed.data, _NUMBER.as_pointer())
        own = builder.gep(own, [builder.mul(at, _LONG(OUTPUTS))])
        features = context.codegen().magic_tuple()[2]
        at_once = VECTORS if "+avx512bw" in features else 1  # whose sums fit into the registers
        for v in range(0, VECTORS, at_once):
            found = _sum_vectors(builder, of_rows, builder.gep(own, [_LONG(LANES * v)]), pairs, at_once)
            for k, total in enumerate(found):
                place = _LONG(k // at_once * OUTPUTS + (v + k % at_once) * LANES)
                pointer = builder.bitcast(builder.gep(into.data, [place]), _SUMS.as_pointer())
                builder.store(total, pointer).align = 4
        return context.get_dummy_value()

    return types.void(rows, which, first, count, weights, tile, sums), generate


@helper
def multiply_rows(rows, which, first, count, weights, tile, sums):
    """The same for `count` rows, at most ROWS; `which` has ROWS numbers of rows from `first` on."""
    if count > FEW:
        multiply_tile(rows, which, first, ROWS, weights, tile, sums)
        return
    for i in range(count):
        multiply_tile(rows, which, first + i, 1, weights, tile, sums[i:])


@helper
def as_float(sums, scale, scales, biases, out):
    """out = sums, scaled back, plus biases: of a tile."""
    for o in range(OUTPUTS):
        out[o] = np.float32(sums[o]) * (scale * scales[o]) + biases[o]


@helper
def number_rows(which, n):
    """Fill `which`: 0, 1, … n - 1, and then the last one again."""
    for i in range(len(which)):
        which[i] = min(i, n - 1)


@helper
def multiply_all(rows, scales, weights, weight_scales, biases, which, sums, out):
    for tile in range(len(weights)):
        columns = slice(tile * OUTPUTS, (tile + 1) * OUTPUTS)
        for first in range(0, len(rows), ROWS):
            count = min(ROWS, len(rows) - first)
            multiply_rows(rows, which, first, count, weights, tile, sums)
            for i in range(count):
                k = first + i
                as_float(sums[i], scales[k], weight_scales[columns], biases[columns], out[k, columns])


@kernel
def multiply(rows, scales, weights, weight_scales, biases, out):
    """out[k, o] = the product of row k and output o, scaled back, plus biases[o]. (n, tiles * OUTPUTS) float32"""
    which, sums = np.empty(BLOCK + ROWS, np.int64), np.empty((ROWS, OUTPUTS), np.int32)
    for first in range(0, len(rows), BLOCK):
        here = slice(first, min(first + BLOCK, len(rows)))
        number_rows(which, here.stop - first)
        multiply_all(rows[here], scales[here], weights, weight_scales, biases, which, sums, out[here])


@helper
def max_input(inputs):
    """The largest |number of a row| of so many inputs, an even number; that of weights may be about as large.

    Of 512 inputs it is 4,096: weights whose mean is a quarter of their maximum are then up to 4,096 too.
    """
    return np.int64(min(32767.0, math.sqrt(4 * (MAX_SUM + 1.0) / inputs)))


@max_helper
def largest_of(numbers):
    """The largest of |numbers|."""
    largest = np.float32(0)
    for i in range(len(numbers)):
        largest = max(largest, abs(numbers[i]))
    return largest


@helper
def quantise_row(numbers, out):
    """Round numbers to integers as large as they may be; return what one is worth. `out`: as many, or one more."""
    out[len(numbers) :] = 0
    largest = largest_of(numbers)
    if largest == np.float32(0):
        out[:] = 0
        return np.float32(0)
    most = np.float32(max_input(len(out)))
    factor = most / largest
    for i in range(len(numbers)):
        out[i] = np.int16(np.rint(numbers[i] * factor))
    return largest / most


@kernel
def quantise(numbers, out, scales):
    """Fill in rows and their scales. numbers: (n, inputs) float32, out: (n, inputs or one more) int16"""
    for k in range(len(numbers)):
        scales[k] = quantise_row(numbers[k], out[k])


@kernel
def pack(weights, order, out, scales):
    """Fill in tiles of weights, and what one is worth. Output o is row order[o] of `weights`; below 0 it is all zero.

    Numbers are as large as they can be, such that no sum overflows.
    """
    inputs = weights.shape[1]
    most = np.float64(MAX_SUM // max_input(2 * out.shape[1]) - inputs)
    for o in range(len(order)):
        tile, column = o // OUTPUTS, o % OUTPUTS
        scales[o] = 0
        out[tile, :, column] = 0
        if order[o] < 0:
            continue
        row = weights[order[o]]
        largest, total = 0.0, 0.0
        for i in range(inputs):
            largest = max(largest, np.float64(abs(row[i])))
            total += abs(row[i])
        if not total < np.inf:  # nor are the products numbers
            scales[o] = np.nan
        elif largest > 0:
            factor = min(32767.0 / largest, most / total)
            scales[o] = 1 / factor
            for i in range(inputs):
                out[tile, i // 2, column, i % 2] = np.int16(np.rint(row[i] * factor))
