"""Short sums of products, LANES numbers at a time: the lengths of all rows are multiples of it.

LLVM turns such loops into vector instructions by itself, but for arrays that may overlap it first compares all their
addresses each time, and the rows here are short.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from snm.calibration import LANES

_FLOAT, _NUMBER = ir.FloatType(), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)


def _row(context, builder, signature, arguments, i):
    """Pointer to the first number of row arguments[i + 1] of the two-dimensional array arguments[i]."""
    made = context.make_array(signature.args[i])(context, builder, arguments[i])
    row = context.cast(builder, arguments[i + 1], signature.args[i + 1], types.intp)
    stride = builder.udiv(cgutils.unpack_tuple(builder, made.strides)[0], row.type(4))
    return builder.gep(made.data, [builder.mul(row, stride)])


def _load(builder, pointer, at):
    loaded = builder.load(builder.bitcast(builder.gep(pointer, [at]), _VECTOR.as_pointer()))
    loaded.align = 4
    return loaded


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
def add_products(typing_context, sums, row, weights, first, x0, x1, x2, length):
    """sums[row] += x0 * weights[first] + x1 * weights[first + 1] + x2 * weights[first + 2] + weights[first + 3]."""

    def generate(context, builder, signature, arguments):
        into = _row(context, builder, signature, arguments, 0)
        made = context.make_array(signature.args[2])(context, builder, arguments[2])
        stride = builder.udiv(cgutils.unpack_tuple(builder, made.strides)[0], ir.IntType(64)(4))
        start = _row(context, builder, signature, arguments, 2)
        factors = [_all(builder, x) for x in arguments[4:7]]
        length = context.cast(builder, arguments[7], signature.args[7], types.intp)
        with cgutils.for_range_slice(builder, length.type(0), length, length.type(LANES), length.type) as (at, _):
            rows = [builder.gep(start, [builder.mul(stride, stride.type(i))]) for i in range(4)]
            total = builder.fadd(_load(builder, into, at), _load(builder, rows[3], at))
            for factor, weight in zip(factors, rows, strict=False):
                total = _multiply_add(builder, factor, _load(builder, weight, at), total)
            stored = builder.store(total, builder.bitcast(builder.gep(into, [at]), _VECTOR.as_pointer()))
            stored.align = 4
        return context.get_dummy_value()

    number = types.float32
    return types.void(sums, row, weights, first, number, number, number, length), generate


@intrinsic
def sum_products(typing_context, a, row, b, other, length):
    """The sum of the products of a[row] and b[other]."""

    def generate(context, builder, signature, arguments):
        left, right = _row(context, builder, signature, arguments, 0), _row(context, builder, signature, arguments, 2)
        length = context.cast(builder, arguments[4], signature.args[4], types.intp)
        total = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, None))
        with cgutils.for_range_slice(builder, length.type(0), length, length.type(LANES), length.type) as (at, _):
            product = _multiply_add(
                builder, _load(builder, left, at), _load(builder, right, at), builder.load(total)
            )  # fmt: skip
            builder.store(product, total)
        kind = ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR])
        add_all = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
        return builder.call(add_all, [_FLOAT(0.0), builder.load(total)], fastmath=("reassoc",))

    return types.float32(a, row, b, other, length), generate
