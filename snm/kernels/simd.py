"""Machine instructions that Numba does not offer: prefetch, unaligned reads, vector comparisons and products.

They go through pointers, so Numba does not check their indices. With its bounds checks on (NUMBA_BOUNDSCHECK=1), those
that read a model's arrays check them themselves.
"""

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from snm.layouts.gate import LANES
from snm.layouts.matrix import LINE

_READ, _KEEP, _DATA = 0, 2, 1  # arguments of LLVM's prefetch: to read, into all caches but the first, data
_FLOAT, _NUMBER, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)


def _data(context, builder, signature, arguments, i):
    """Pointer to the first element of the array arguments[i]."""
    return context.make_array(signature.args[i])(context, builder, arguments[i]).data


def _index(context, builder, signature, arguments, i):
    return context.cast(builder, arguments[i], signature.args[i], types.intp)


def _check(context, builder, signature, arguments, first, count):
    """Raise IndexError if not all of array[first:first + count] is there; only with Numba's bounds checks."""
    if config.BOUNDSCHECK:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        (length,) = cgutils.unpack_tuple(builder, made.shape)
        cgutils.do_boundscheck(context, builder, first, length)
        cgutils.do_boundscheck(context, builder, builder.add(first, _LONG(count - 1)), length)


def _load(builder, pointer, at, loaded_type=_VECTOR, align=4):
    loaded = builder.load(builder.bitcast(builder.gep(pointer, [at]), loaded_type.as_pointer()))
    loaded.align = align
    return loaded


@intrinsic
def prefetch(typing_context, array, index):
    """Prefetch the cache line of array[index], or of the first element of that row.

    Kernels prefetch for many random look-ups before they read for the first, so that cache misses overlap.
    """
    signature = types.void(array, index)

    def generate(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        stride = cgutils.unpack_tuple(builder, made.strides)[0]
        at = _index(context, builder, signature, arguments, 1)
        byte_pointer = ir.IntType(8).as_pointer()
        address = builder.gep(builder.bitcast(made.data, byte_pointer), [builder.mul(at, stride)])
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, _NUMBER, _NUMBER, _NUMBER])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
        builder.call(function, [address, _NUMBER(_READ), _NUMBER(_KEEP), _NUMBER(_DATA)])
        return context.get_dummy_value()

    return signature, generate


def _reader(bits, result):
    """An intrinsic that reads `bits` bits at any index of a byte array, little-endian."""

    def read(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            data, at = (
                _data(context, builder, signature, arguments, 0),
                _index(context, builder, signature, arguments, 1),
            )
            _check(context, builder, signature, arguments, at, bits // 8)
            return _load(builder, data, at, ir.IntType(bits), align=1)

        return result(array, index), generate

    return intrinsic(read)


read_u2, read_u4, read_u8 = _reader(16, types.uint16), _reader(32, types.uint32), _reader(64, types.uint64)


def _bits_as(result, of):
    """An intrinsic that reinterprets the bits of a number as another type."""

    def convert(typing_context, number):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(result))

        return result(of), generate

    return intrinsic(convert)


as_float, as_bits = _bits_as(types.float32, types.uint32), _bits_as(types.uint32, types.float32)
as_double, as_long = _bits_as(types.float64, types.int64), _bits_as(types.int64, types.float64)
MARKS, MARKS_BYTES = 8, 32  # marks that `matches` compares, and bytes that it may read


@intrinsic
def matches(typing_context, array, index, mark):
    """Bit i: whether the three bytes from array[index + 3 i] on are `mark`, for i below MARKS.

    One misprediction of a loop's end costs more than all comparisons, so there is no branch.
    """

    def generate(context, builder, signature, arguments):
        data, at = _data(context, builder, signature, arguments, 0), _index(context, builder, signature, arguments, 1)
        _check(context, builder, signature, arguments, at, 12 * (MARKS // 4 - 1) + 16)
        sixteen, four = ir.VectorType(ir.IntType(8), 16), ir.VectorType(_NUMBER, 4)
        sources = [3 * (i // 4) + i % 4 if i % 4 < 3 else 16 for i in range(16)]  # 16: the first zero
        order = ir.Constant(ir.VectorType(_NUMBER, 16), [_NUMBER(source) for source in sources])
        zeros = ir.Constant(sixteen, None)
        wanted = _repeated(builder, arguments[2], 4)
        found = _LONG(0)
        for part in range(MARKS // 4):
            loaded = _load(builder, data, builder.add(at, _LONG(12 * part)), sixteen, align=1)
            numbers = builder.bitcast(builder.shuffle_vector(loaded, zeros, order), four)
            equal = builder.bitcast(builder.icmp_unsigned("==", numbers, wanted), ir.IntType(4))
            bits = builder.shl(builder.zext(equal, _LONG), _LONG(4 * part))
            found = builder.or_(found, bits)
        return found

    return types.int64(array, index, types.uint32), generate


def _repeated(builder, number, n):
    """A vector of n copies of a number."""
    zero = _NUMBER(0)
    one = builder.insert_element(ir.Constant(ir.VectorType(number.type, n), ir.Undefined), number, zero)
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_NUMBER, n), [zero] * n))


@intrinsic(prefer_literal=True)
def equal_numbers(typing_context, array, index, wanted, count, size):
    """Bit i: whether the number of `size` bytes at array[index + size * i] is `wanted`, for i below `count`.

    `count` and `size` are constants. There is no branch.
    """
    n, bits = count.literal_value, 8 * size.literal_value

    def generate(context, builder, signature, arguments):
        data, at = _data(context, builder, signature, arguments, 0), _index(context, builder, signature, arguments, 1)
        integer = ir.IntType(bits)
        _check(context, builder, signature, arguments, at, n * size.literal_value)
        loaded = _load(builder, data, at, ir.VectorType(integer, n), align=1)
        number = builder.trunc(arguments[2], integer) if bits < 32 else arguments[2]
        equal = builder.bitcast(builder.icmp_unsigned("==", loaded, _repeated(builder, number, n)), ir.IntType(n))
        return builder.zext(equal, _LONG) if n < 64 else equal

    return types.int64(array, index, types.uint32, count, size), generate


@intrinsic
def equal_links(typing_context, links, first, shift, wanted):
    """Bit i: whether links[first + i] >> shift is `wanted`, for i below LINE."""

    def generate(context, builder, signature, arguments):
        data, at = _data(context, builder, signature, arguments, 0), _index(context, builder, signature, arguments, 1)
        integer = context.get_value_type(signature.args[0].dtype)
        _check(context, builder, signature, arguments, at, LINE)
        loaded = _load(builder, data, at, ir.VectorType(integer, LINE), align=integer.width // 8)

        def repeated(number):
            return _repeated(builder, context.cast(builder, number, types.uint64, signature.args[0].dtype), LINE)

        equal = builder.icmp_unsigned("==", builder.lshr(loaded, repeated(arguments[2])), repeated(arguments[3]))
        return builder.zext(builder.bitcast(equal, ir.IntType(LINE)), _LONG)

    return types.int64(links, first, types.uint64, types.uint64), generate


@intrinsic
def lowest_bit(typing_context, number):
    """Index of the lowest bit that is set, of a number that is not zero."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


@intrinsic
def leading_zeros(typing_context, number):
    """Number of zeros above the highest bit that is set, of a 64-bit number that is not zero."""

    def generate(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


TILE = 64  # events that the gate processes together
_TOTALS = 8  # vectors that `sum_columns` adds to in turns


def _row(context, builder, signature, arguments, i, row=None):
    """Pointer to a row of the two-dimensional array arguments[i]: row number `row`, or arguments[i + 1]."""
    made = context.make_array(signature.args[i])(context, builder, arguments[i])
    if row is None:
        row = _index(context, builder, signature, arguments, i + 1)
    else:
        row = _LONG(row)
    stride = builder.udiv(cgutils.unpack_tuple(builder, made.strides)[0], made.itemsize)
    return builder.gep(made.data, [builder.mul(row, stride)])


def _store(builder, vector, pointer, at):
    builder.store(vector, builder.bitcast(builder.gep(pointer, [at]), _VECTOR.as_pointer())).align = 4


def _multiply_add(builder, a, b, c):
    return builder.call(
        cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        ),
        [a, b, c],
    )


@intrinsic
def add_products(typing_context, sums, events, start, stop, weights, first, inputs, length):
    """Add x0 * weights[first] + x1 * weights[first + 1] + x2 * weights[first + 2] + weights[first + 3] to sums[e].

    For each e of events[start:stop]; x is its column of `inputs`. The weights stay in registers for all events.
    """

    def generate(context, builder, signature, arguments):
        into, event_numbers = (_data(context, builder, signature, arguments, i) for i in (0, 1))
        first_weight = _row(context, builder, signature, arguments, 4)
        columns = [_row(context, builder, signature, arguments, 6, i) for i in range(3)]
        start, stop, length = (_index(context, builder, signature, arguments, i) for i in (2, 3, 7))
        with cgutils.for_range_slice(builder, _LONG(0), length, _LONG(LANES), _LONG) as (at, _):
            *rows, constant = [
                _load(builder, builder.gep(first_weight, [builder.mul(length, _LONG(i))]), at) for i in range(4)
            ]  # fmt: skip
            with cgutils.for_range_slice(builder, start, stop, _LONG(1), _LONG) as (index, _):
                total = constant
                for column, row in zip(columns, rows, strict=True):
                    x = builder.load(builder.gep(column, [index]))
                    total = _multiply_add(builder, _repeated(builder, x, LANES), row, total)
                event = builder.load(builder.gep(event_numbers, [index]))
                sums = builder.gep(into, [builder.mul(event, length)])
                _store(builder, builder.fadd(_load(builder, sums, at), total), sums, at)
        return context.get_dummy_value()

    return types.void(sums, events, start, stop, weights, first, inputs, length), generate


@intrinsic
def rectify(typing_context, sums, columns, length, count):
    """columns[i, e] = max(sums[e, i], 0) for `count` events e, rounded up to a multiple of LANES.

    Blocks of LANES rows are transposed in registers by exchanging parts of one number, two, four and eight. That takes
    8 ns an event; number by number it took 35.
    """

    def generate(context, builder, signature, arguments):
        rows, into = (_data(context, builder, signature, arguments, i) for i in (0, 1))
        length, count = (_index(context, builder, signature, arguments, i) for i in (2, 3))
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
                    for k, sources in ((i, low), (i + part, high)):
                        mask = ir.Constant(ir.VectorType(_NUMBER, LANES), [_NUMBER(source) for source in sources])
                        block[k] = builder.shuffle_vector(*pair, mask)
                part *= 2
            for i in lanes:
                column = builder.gep(into, [builder.mul(builder.add(at, _LONG(i)), _LONG(TILE))])
                _store(builder, block[i], column, first)
        return context.get_dummy_value()

    return types.void(sums, columns, length, count), generate


@intrinsic(prefer_literal=True)
def sum_columns(typing_context, sums, columns, weights, template, start, length, width):
    """sums = start + the sum over i of weights[template, i] * columns[i], for the first `width` events.

    `width` is a constant, LANES or TILE, so that the sums stay in registers.
    """

    def generate(context, builder, signature, arguments):
        into, columns = (_data(context, builder, signature, arguments, i) for i in (0, 1))
        row = _row(context, builder, signature, arguments, 2)
        length = _index(context, builder, signature, arguments, 5)
        parts = width.literal_value // LANES
        strands = _TOTALS // parts  # independent sums, so that additions need not wait for each other
        begin = [_repeated(builder, arguments[4], LANES)] * parts + [ir.Constant(_VECTOR, None)] * (_TOTALS - parts)
        totals = [cgutils.alloca_once(builder, _VECTOR) for _ in begin]
        for vector, total in zip(begin, totals, strict=True):
            builder.store(vector, total)
        with cgutils.for_range_slice(builder, _LONG(0), length, _LONG(strands), _LONG) as (first, _):
            for k, total in enumerate(totals):
                i = builder.add(first, _LONG(k // parts))
                weight = _repeated(builder, builder.load(builder.gep(row, [i])), LANES)
                column = builder.gep(columns, [builder.mul(i, _LONG(TILE))])
                numbers = _load(builder, column, _LONG(k % parts * LANES))
                builder.store(_multiply_add(builder, weight, numbers, builder.load(total)), total)
        for k in range(parts):
            strand = [builder.load(total) for total in totals[k::parts]]
            while len(strand) > 1:
                strand = [builder.fadd(a, b) for a, b in zip(strand[::2], strand[1::2], strict=True)]
            _store(builder, strand[0], into, _LONG(k * LANES))
        return context.get_dummy_value()

    return types.void(sums, columns, weights, template, types.float32, length, width), generate


@intrinsic
def take_adagrad_steps(typing_context, table, slots, row, column, first, second, rate, of_first, of_second):
    """Take AdaGrad's steps of len(first) weights by the gradient `of_first`, then of len(second) by `of_second`.

    Their slots are in slots[row] from `column` on. The table's columns are theta and the sums of squared gradients.
    Four weights share a square root and a division.
    """

    def generate(context, builder, signature, arguments):
        weights = _data(context, builder, signature, arguments, 0)
        column = _index(context, builder, signature, arguments, 3)
        first_slot = builder.gep(_row(context, builder, signature, arguments, 1), [column])
        gradients = [arguments[7]] * len(first) + [arguments[8]] * len(second)
        for at in range(0, len(gradients), 4):
            _step_four(builder, weights, builder.gep(first_slot, [_LONG(at)]), gradients[at : at + 4], arguments[6])
        return context.get_dummy_value()

    real = types.float32
    return types.void(table, slots, row, column, first, second, real, real, real), generate


def _step_four(builder, table, slots, gradients, rate):
    """The same for up to four weights. With fewer, the spare lanes repeat others and are not stored."""
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
        slot = builder.zext(builder.load(builder.gep(slots, [_LONG(i)])), _LONG)
        pointers.append(builder.bitcast(builder.gep(table, [builder.shl(slot, _LONG(1))]), pair.as_pointer()))
    for pointer in pointers:
        pairs.append(builder.load(pointer))
        pairs[-1].align = 4
    low, high = (shuffled(pairs[i % len(pairs)], pairs[(i + 1) % len(pairs)], 0, 1, 2, 3) for i in (0, 2))
    theta, squares = shuffled(low, high, 0, 2, 4, 6), shuffled(low, high, 1, 3, 5, 7)
    gradient = vector(gradients)
    squares = builder.fadd(squares, builder.fmul(gradient, gradient))
    square_root = cgutils.get_or_insert_function(builder.module, ir.FunctionType(four, [four]), "llvm.sqrt.v4f32")
    step = builder.fdiv(builder.fmul(vector([rate]), gradient), builder.call(square_root, [squares]))
    theta = builder.fsub(theta, step)
    low, high = shuffled(theta, squares, 0, 4, 1, 5), shuffled(theta, squares, 2, 6, 3, 7)
    for i, pointer in enumerate(pointers):
        half = high if i >= 2 else low
        builder.store(shuffled(half, half, i % 2 * 2, i % 2 * 2 + 1), pointer).align = 4
