"""Sums of products for many events at once, LANES numbers at a time: the lengths of all rows are multiples of it.

LLVM turns such loops into vector instructions by itself, but it does not know that the arrays do not overlap, and so it
keeps nothing in registers from one event to the next.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from snm.calibration import LANES

TOGETHER = 64  # events of a block
_TOTALS = 8  # that `sum_columns` adds to in turns

_FLOAT, _NUMBER, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)


def _row(context, builder, signature, arguments, i, row=None):
    """Pointer to the first number of a row of the two-dimensional array arguments[i]: `row`, or arguments[i + 1]."""
    made = context.make_array(signature.args[i])(context, builder, arguments[i])
    if row is None:
        row = context.cast(builder, arguments[i + 1], signature.args[i + 1], types.intp)
    else:
        row = _LONG(row)
    stride = builder.udiv(cgutils.unpack_tuple(builder, made.strides)[0], made.itemsize)
    return builder.gep(made.data, [builder.mul(row, stride)])


def _data(context, builder, signature, arguments, i):
    return context.make_array(signature.args[i])(context, builder, arguments[i]).data


def _load(builder, pointer, at):
    loaded = builder.load(builder.bitcast(builder.gep(pointer, [at]), _VECTOR.as_pointer()))
    loaded.align = 4
    return loaded


def _store(builder, vector, pointer, at):
    builder.store(vector, builder.bitcast(builder.gep(pointer, [at]), _VECTOR.as_pointer())).align = 4


def _all(builder, number):
    """A vector of that number."""
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, _NUMBER(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_NUMBER, LANES), [_NUMBER(0)] * LANES))


def _multiply_add(builder, a, b, c):
    return builder.call(
        cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        ),
        [a, b, c],
    )


@intrinsic
def add_products(typing_context, sums, events, start, stop, weights, first, inputs, length):
    """To sums[e] x0 * weights[first] + x1 * weights[first + 1] + x2 * weights[first + 2] + weights[first + 3] is added.

    For each e of events[start:stop], with its column of `inputs`. The weights stay in registers for all events.
    """

    def generate(context, builder, signature, arguments):
        into, listed = (_data(context, builder, signature, arguments, i) for i in (0, 1))
        first_weight = _row(context, builder, signature, arguments, 4)
        columns = [_row(context, builder, signature, arguments, 6, i) for i in range(3)]
        start, stop, length = (context.cast(builder, arguments[i], signature.args[i], types.intp) for i in (2, 3, 7))
        with cgutils.for_range_slice(builder, _LONG(0), length, _LONG(LANES), _LONG) as (at, _):
            *rows, constant = [
                _load(builder, builder.gep(first_weight, [builder.mul(length, _LONG(i))]), at) for i in range(4)
            ]  # fmt: skip
            with cgutils.for_range_slice(builder, start, stop, _LONG(1), _LONG) as (index, _):
                total = constant
                for column, row in zip(columns, rows, strict=True):
                    x = builder.load(builder.gep(column, [index]))
                    total = _multiply_add(builder, _all(builder, x), row, total)
                event = builder.load(builder.gep(listed, [index]))
                sums = builder.gep(into, [builder.mul(event, length)])
                _store(builder, builder.fadd(_load(builder, sums, at), total), sums, at)
        return context.get_dummy_value()

    return types.void(sums, events, start, stop, weights, first, inputs, length), generate


@intrinsic
def rectify(typing_context, sums, columns, length, count):
    """columns[i, e] = max(sums[e, i], 0) for `count` events e, or up to LANES - 1 more.

    LANES rows become LANES columns in registers, by exchanging parts of one number, two, four and eight: 8 ns an event,
    with one number after another 35.
    """

    def generate(context, builder, signature, arguments):
        rows, into = (_data(context, builder, signature, arguments, i) for i in (0, 1))
        length, count = (context.cast(builder, arguments[i], signature.args[i], types.intp) for i in (2, 3))
        zeros, lanes = ir.Constant(_VECTOR, None), range(LANES)
        with (
            cgutils.for_range_slice(builder, _LONG(0), length, _LONG(LANES), _LONG) as (at, _),
            cgutils.for_range_slice(builder, _LONG(0), count, _LONG(LANES), _LONG) as (first, _),
        ):
            block = []
            for e in lanes:
                row = builder.gep(rows, [builder.mul(length, builder.add(first, _LONG(e)))])
                total = _load(builder, row, at)
                block.append(builder.select(builder.fcmp_ordered(">", total, zeros), total, zeros))
            part = 1
            while part < LANES:
                low = [i if not i & part else LANES + i - part for i in lanes]
                high = [i + part if not i & part else LANES + i for i in lanes]
                for i in (i for i in lanes if not i & part):
                    pair = block[i], block[i + part]
                    for k, places in ((i, low), (i + part, high)):
                        mask = ir.Constant(ir.VectorType(_NUMBER, LANES), [_NUMBER(place) for place in places])
                        block[k] = builder.shuffle_vector(*pair, mask)
                part *= 2
            for i in lanes:
                column = builder.gep(into, [builder.mul(builder.add(at, _LONG(i)), _LONG(TOGETHER))])
                _store(builder, block[i], column, first)
        return context.get_dummy_value()

    return types.void(sums, columns, length, count), generate


@intrinsic(prefer_literal=True)
def sum_columns(typing_context, sums, columns, weights, slot, start, length, width):
    """sums = start + the sum over i of weights[slot, i] * columns[i], of the first `width` events.

    That is a constant, LANES or TOGETHER: the sums stay in registers.
    """

    def generate(context, builder, signature, arguments):
        into, columns = (_data(context, builder, signature, arguments, i) for i in (0, 1))
        row = _row(context, builder, signature, arguments, 2)
        length = context.cast(builder, arguments[5], signature.args[5], types.intp)
        parts = width.literal_value // LANES
        strands = _TOTALS // parts  # every so many i have a total of their own: additions need not wait for each other
        begin = [_all(builder, arguments[4])] * parts + [ir.Constant(_VECTOR, None)] * (_TOTALS - parts)
        totals = [cgutils.alloca_once(builder, _VECTOR) for _ in begin]
        for vector, total in zip(begin, totals, strict=True):
            builder.store(vector, total)
        with cgutils.for_range_slice(builder, _LONG(0), length, _LONG(strands), _LONG) as (first, _):
            for k, total in enumerate(totals):
                i = builder.add(first, _LONG(k // parts))
                weight = _all(builder, builder.load(builder.gep(row, [i])))
                column = builder.gep(columns, [builder.mul(i, _LONG(TOGETHER))])
                numbers = _load(builder, column, _LONG(k % parts * LANES))
                builder.store(_multiply_add(builder, weight, numbers, builder.load(total)), total)
        for k in range(parts):
            strand = [builder.load(total) for total in totals[k::parts]]
            while len(strand) > 1:
                strand = [builder.fadd(a, b) for a, b in zip(strand[::2], strand[1::2], strict=True)]
            _store(builder, strand[0], into, _LONG(k * LANES))
        return context.get_dummy_value()

    return types.void(sums, columns, weights, slot, types.float32, length, width), generate


@intrinsic
def move_weights(typing_context, table, places, row, column, first, second, rate, of_first, of_second):
    """AdaGrad's steps of as many weights as `first` has members by the gradient `of_first`, then likewise `second`.

    Their places stand in places[row] from `column` on; the table has two columns, the weights and the sums of squares.
    Four at a time, which share a root and a division.
    """

    def generate(context, builder, signature, arguments):
        weights = _data(context, builder, signature, arguments, 0)
        column = context.cast(builder, arguments[3], signature.args[3], types.intp)
        listed = builder.gep(_row(context, builder, signature, arguments, 1), [column])
        gradients = [arguments[7]] * len(first) + [arguments[8]] * len(second)
        for at in range(0, len(gradients), 4):
            _move_four(builder, weights, builder.gep(listed, [_LONG(at)]), gradients[at : at + 4], arguments[6])
        return context.get_dummy_value()

    real = types.float32
    return types.void(table, places, row, column, first, second, real, real, real), generate


def _move_four(builder, table, places, gradients, rate):
    """The same for up to four weights. Lanes that are left over repeat others and are not stored."""
    four, pair = ir.VectorType(_FLOAT, 4), ir.VectorType(_FLOAT, 2)

    def shuffled(a, b, *order):
        return builder.shuffle_vector(
            a, b, ir.Constant(ir.VectorType(_NUMBER, len(order)), [_NUMBER(i) for i in order])
        )

    def vector(numbers):
        made = ir.Constant(four, ir.Undefined)
        for i in range(4):
            made = builder.insert_element(made, numbers[i % len(numbers)], _NUMBER(i))
        return made

    pointers, pairs = [], []
    for i in range(len(gradients)):
        place = builder.zext(builder.load(builder.gep(places, [_LONG(i)])), _LONG)
        pointers.append(builder.bitcast(builder.gep(table, [builder.shl(place, _LONG(1))]), pair.as_pointer()))
    for pointer in pointers:
        pairs.append(builder.load(pointer))
        pairs[-1].align = 4
    low, high = (shuffled(pairs[i % len(pairs)], pairs[(i + 1) % len(pairs)], 0, 1, 2, 3) for i in (0, 2))
    theta, seen = shuffled(low, high, 0, 2, 4, 6), shuffled(low, high, 1, 3, 5, 7)
    gradient = vector(gradients)
    seen = builder.fadd(seen, builder.fmul(gradient, gradient))
    square_root = cgutils.get_or_insert_function(builder.module, ir.FunctionType(four, [four]), "llvm.sqrt.v4f32")
    step = builder.fdiv(builder.fmul(vector([rate]), gradient), builder.call(square_root, [seen]))
    theta = builder.fsub(theta, step)
    low, high = shuffled(theta, seen, 0, 4, 1, 5), shuffled(theta, seen, 2, 6, 3, 7)
    for i, pointer in enumerate(pointers):
        half = high if i >= 2 else low
        builder.store(shuffled(half, half, i % 2 * 2, i % 2 * 2 + 1), pointer).align = 4
