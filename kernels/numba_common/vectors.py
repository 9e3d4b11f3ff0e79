"""Vectors of LANES fp32 numbers as values of compiled code, so that its inner loops are what they are written as.

LLVM makes vectors of loops over arrays, but checks at each that the arrays do not overlap, and sums across a vector at
the end of each.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

from kernels.numba_common.compiled import FAST, compiled

LANES = 16
"""Numbers of a vector: one register of AVX-512, two of AVX2."""

_CODE = ir.VectorType(ir.FloatType(), LANES)


class Vector(types.Type):
    """The type of a vector."""

    def __init__(self) -> None:
        super().__init__("Vector")


VECTOR = Vector()


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    """A vector is one register."""

    def __init__(self, manager, kind) -> None:
        super().__init__(manager, kind, _CODE)


def _check(array) -> None:
    """Raise TypingError for the type of an array that is not fp32 or not contiguous: its bytes would be misread."""
    if array.dtype != types.float32 or array.layout != "C":
        raise TypingError(f"vectors are of contiguous fp32 arrays, got {array}")


def _place(context, builder, kind, array, at):
    """The address of array[at], without checks."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), _CODE.as_pointer())


@intrinsic
def load(_context, array, at):
    """The numbers array[at : at + LANES] of a contiguous fp32 array."""

    def code(context, builder, signature, arguments):
        return builder.load(_place(context, builder, signature.args[0], *arguments), align=4)

    _check(array)
    return VECTOR(array, types.intp), code


@intrinsic
def store(_context, array, at, vector):
    """Write a vector to array[at : at + LANES]."""

    def code(context, builder, signature, arguments):
        array, at, vector = arguments
        builder.store(vector, _place(context, builder, signature.args[0], array, at), align=4)
        return context.get_dummy_value()

    _check(array)
    return types.void(array, types.intp, VECTOR), code


@intrinsic
def spread(_context, x):
    """A vector of the fp32 x everywhere."""

    def code(_, builder, __, arguments):
        one = builder.insert_element(ir.Constant(_CODE, ir.Undefined), arguments[0], ir.IntType(32)(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(one, ir.Constant(_CODE, ir.Undefined), zeros)

    return VECTOR(types.float32), code


@intrinsic
def multiply_add(_context, a, b, c):
    """a·b + c, rounded once where the processor can."""

    def code(_, builder, __, arguments):
        kind = ir.FunctionType(_CODE, [_CODE] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        return builder.call(function, arguments)

    return VECTOR(VECTOR, VECTOR, VECTOR), code


def _folding(width: int):
    """An intrinsic of two vectors whose groups of 2·width lanes become groups of width: first and second half added."""
    groups = range(LANES // width)
    halves = [[2 * width * g + part + i for g in groups for i in range(width)] for part in (0, width)]
    masks = [ir.Constant(ir.VectorType(ir.IntType(32), LANES), half) for half in halves]

    @intrinsic
    def fold(_context, a, b):
        def code(_, builder, __, arguments):
            first, second = (builder.shuffle_vector(*arguments, mask) for mask in masks)
            return builder.fadd(first, second)

        return VECTOR(VECTOR, VECTOR), code

    return fold


fold8, fold4, fold2, fold1 = (_folding(width) for width in (8, 4, 2, 1))


@compiled(FAST, inline=True)
def four_totals(a, b, c, d):
    """A vector of groups of four lanes, that of group i adding up to the i-th vector's sum."""
    return fold4(fold8(a, b), fold8(c, d))


@compiled(FAST, inline=True)
def totals(a, b, c, d):
    """The sums of 16 vectors, lane by lane, from four times `four_totals`."""
    return fold1(fold2(a, b), fold2(c, d))


def _storing(quarter: int):
    """An intrinsic that writes lanes 4·quarter to 4·quarter + 3."""
    mask = ir.Constant(ir.VectorType(ir.IntType(32), 4), [4 * quarter + i for i in range(4)])
    part = ir.VectorType(ir.FloatType(), 4)

    @intrinsic
    def store(_context, array, at, vector):
        def code(context, builder, signature, arguments):
            array, at, vector = arguments
            place = builder.bitcast(_place(context, builder, signature.args[0], array, at), part.as_pointer())
            builder.store(builder.shuffle_vector(vector, vector, mask), place, align=4)
            return context.get_dummy_value()

        _check(array)
        return types.void(array, types.intp, VECTOR), code

    return store


store_first, store_second, store_third, store_fourth = (_storing(quarter) for quarter in range(4))
