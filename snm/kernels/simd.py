"""Asking for memory before it is needed."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from snm.layouts.gate import LANES
from snm.layouts.matrix import LINE

_READ, _KEEP, _DATA = 0, 2, 1  # arguments of LLVM's prefetch: for reading, in all caches but the first, data


@intrinsic
def prefetch(typing_context, array, index):
    """Ask for the cache line of array[index] (the first element of that row, where it has more dimensions).

    Nothing waits for it: the places of many random look-ups are asked for before the first of them is read.
    """
    signature = types.void(array, index)

    def generate(context, builder, signature, arguments):
        array_type, index_type = signature.args
        made = context.make_array(array_type)(context, builder, arguments[0])
        stride = cgutils.unpack_tuple(builder, made.strides)[0]
        at = context.cast(builder, arguments[1], index_type, types.intp)
        byte_pointer = ir.IntType(8).as_pointer()
        address = builder.gep(builder.bitcast(made.data, byte_pointer), [builder.mul(at, stride)])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [address, number(_READ), number(_KEEP), number(_DATA)])
        return context.get_dummy_value()

    return signature, generate


def _reader(bits, result):
    """An intrinsic that reads `bits` from any byte of a byte array, little-endian."""

    def read(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            made = context.make_array(signature.args[0])(context, builder, arguments[0])
            at = context.cast(builder, arguments[1], signature.args[1], types.intp)
            address = builder.bitcast(builder.gep(made.data, [at]), ir.IntType(bits).as_pointer())
            value = builder.load(address)
            value.align = 1
            return value

        return result(array, index), generate

    return intrinsic(read)


read_u2, read_u4, read_u8 = _reader(16, types.uint16), _reader(32, types.uint32), _reader(64, types.uint64)


def _bits_as(kind, of):
    """An intrinsic that takes the bits of one number for another's."""

    def convert(typing_context, number):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(kind))

        return kind(of), generate

    return intrinsic(convert)


as_float, as_bits = _bits_as(types.float32, types.uint32), _bits_as(types.uint32, types.float32)
as_double, as_long = _bits_as(types.float64, types.int64), _bits_as(types.int64, types.float64)
MARKS, MARKS_BYTES = 8, 32  # how many numbers `matches` compares, and the bytes that it may read


@intrinsic
def matches(typing_context, array, index, mark):
    """Bit i says whether the three bytes from array[index + 3 i] on are `mark`, for every i below MARKS.

    Without a branch: where a loop would end cannot be foretold, and to be wrong about it costs more than all of them.
    """

    def generate(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], signature.args[1], types.intp)
        byte, number = ir.IntType(8), ir.IntType(32)
        few, four = ir.VectorType(byte, 16), ir.VectorType(number, 4)
        places = [3 * (i // 4) + i % 4 if i % 4 < 3 else 16 for i in range(16)]  # 16: from the vector of zeros
        spread = ir.Constant(ir.VectorType(number, 16), [number(p) for p in places])
        zeros = ir.Constant(few, None)
        wanted = ir.Constant(four, ir.Undefined)
        for i in range(4):
            wanted = builder.insert_element(wanted, arguments[2], number(i))
        found = ir.Constant(ir.IntType(64), 0)
        for part in range(MARKS // 4):
            address = builder.gep(made.data, [builder.add(at, at.type(12 * part))])
            loaded = builder.load(builder.bitcast(address, few.as_pointer()))
            loaded.align = 1
            numbers = builder.bitcast(builder.shuffle_vector(loaded, zeros, spread), four)
            equal = builder.bitcast(builder.icmp_unsigned("==", numbers, wanted), ir.IntType(4))
            bits = builder.shl(builder.zext(equal, ir.IntType(64)), ir.IntType(64)(4 * part))
            found = builder.or_(found, bits)
        return found

    return types.int64(array, index, types.uint32), generate


def _repeated(builder, number, n):
    """A vector of n times that number."""
    zero = ir.IntType(32)(0)
    one = builder.insert_element(ir.Constant(ir.VectorType(number.type, n), ir.Undefined), number, zero)
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), n), [zero] * n))


@intrinsic(prefer_literal=True)
def equal_numbers(typing_context, array, index, wanted, count, size):
    """Bit i says whether the number of `size` bytes at array[index + size * i] is `wanted`, for every i below `count`.

    Both are constants. Without a branch, too.
    """
    n, bits = count.literal_value, 8 * size.literal_value

    def generate(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], signature.args[1], types.intp)
        kind = ir.IntType(bits)
        few = ir.VectorType(kind, n)
        loaded = builder.load(builder.bitcast(builder.gep(made.data, [at]), few.as_pointer()))
        loaded.align = 1
        number = builder.trunc(arguments[2], kind) if bits < 32 else arguments[2]
        equal = builder.bitcast(builder.icmp_unsigned("==", loaded, _repeated(builder, number, n)), ir.IntType(n))
        return builder.zext(equal, ir.IntType(64)) if n < 64 else equal

    return types.int64(array, index, types.uint32, count, size), generate


@intrinsic
def equal_links(typing_context, links, first, shift, wanted):
    """Bit i says whether links[first + i] >> shift is `wanted`, for every i below LINE."""

    def generate(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], signature.args[1], types.intp)
        kind = context.get_value_type(signature.args[0].dtype)
        few = ir.VectorType(kind, LINE)
        loaded = builder.load(builder.bitcast(builder.gep(made.data, [at]), few.as_pointer()))
        loaded.align = kind.width // 8

        def all_of(number):
            return _repeated(builder, context.cast(builder, number, types.uint64, signature.args[0].dtype), LINE)

        equal = builder.icmp_unsigned("==", builder.lshr(loaded, all_of(arguments[2])), all_of(arguments[3]))
        return builder.zext(builder.bitcast(equal, ir.IntType(LINE)), ir.IntType(64))

    return types.int64(links, first, types.uint64, types.uint64), generate


@intrinsic
def lowest_bit(typing_context, number):
    """The place of the lowest bit that is set, of a number that is not zero."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


@intrinsic
def leading_zeros(typing_context, number):
    """How many of the 64 bits above the highest one that is set, of a number that is not zero."""

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


TILE = 64  # events of a block
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
                column = builder.gep(into, [builder.mul(builder.add(at, _LONG(i)), _LONG(TILE))])
                _store(builder, block[i], column, first)
        return context.get_dummy_value()

    return types.void(sums, columns, length, count), generate


@intrinsic(prefer_literal=True)
def sum_columns(typing_context, sums, columns, weights, slot, start, length, width):
    """sums = start + the sum over i of weights[slot, i] * columns[i], of the first `width` events.

    That is a constant, LANES or TILE: the sums stay in registers.
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
                column = builder.gep(columns, [builder.mul(i, _LONG(TILE))])
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
