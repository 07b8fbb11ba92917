"""Asking for memory before it is needed."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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


LINE = 16  # how many links `equal_links` compares: a line of the cache, where they have four bytes


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
