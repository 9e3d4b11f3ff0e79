"""Vectors of LANES fp32 numbers as values of compiled code, and products with rows of keys that are made of them.

With them inner loops are what they are written as. LLVM makes vectors of loops over arrays, too, but checks at each
that the arrays do not overlap, and sums across a vector at the end of each.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

from kernels.numba_common import WIDTH
from kernels.numba_common.compiled import FAST, INFINITE, F, compiled, exp32

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
        raise TypingError(f"vectors need contiguous fp32 arrays, got {array}")


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


# Products of a query group with the rows of keys that it selected, read where they stand: four heads at a time.
#
# Rows are as wide as a multiple of WIDTH; heads beyond a multiple of four go one by one, slower.

assert WIDTH == 2 * LANES  # what a pass over the keys holds in registers of each head


@compiled(FAST)
def score_rows(q, k, places, first, last, out):
    """out[g, j] = q[g]·k[places[j]] for first ≤ j < last: q [G, K], k [T, K], places int32 [n], out [G, n]."""
    g, whole = 0, first + (last - first) // 4 * 4
    while g + 4 <= q.shape[0]:
        for j in range(first, whole, 4):
            _score_four(q[g : g + 4], k, places, j, out[g : g + 4])
        for member in range(g, g + 4):
            _score_one(q[member], k, places, whole, last, out[member])
        g += 4
    while g < q.shape[0]:
        _score_one(q[g], k, places, first, last, out[g])
        g += 1


@compiled(FAST, inline=True)
def _score_four(q, k, places, j, out):
    """Four heads, four keys from j on: sixteen sums in registers, added up together."""
    q0, q1, q2, q3 = q[0], q[1], q[2], q[3]
    k0, k1, k2, k3 = k[places[j]], k[places[j + 1]], k[places[j + 2]], k[places[j + 3]]
    zero = spread(F(0))
    a0, a1, a2, a3 = zero, zero, zero, zero
    b0, b1, b2, b3 = zero, zero, zero, zero
    c0, c1, c2, c3 = zero, zero, zero, zero
    d0, d1, d2, d3 = zero, zero, zero, zero
    at = 0
    while at < q.shape[1]:
        x0, x1, x2, x3 = load(k0, at), load(k1, at), load(k2, at), load(k3, at)
        y = load(q0, at)
        a0, a1, a2, a3 = (
            multiply_add(y, x0, a0),
            multiply_add(y, x1, a1),
            multiply_add(y, x2, a2),
            multiply_add(y, x3, a3),
        )
        y = load(q1, at)
        b0, b1, b2, b3 = (
            multiply_add(y, x0, b0),
            multiply_add(y, x1, b1),
            multiply_add(y, x2, b2),
            multiply_add(y, x3, b3),
        )
        y = load(q2, at)
        c0, c1, c2, c3 = (
            multiply_add(y, x0, c0),
            multiply_add(y, x1, c1),
            multiply_add(y, x2, c2),
            multiply_add(y, x3, c3),
        )
        y = load(q3, at)
        d0, d1, d2, d3 = (
            multiply_add(y, x0, d0),
            multiply_add(y, x1, d1),
            multiply_add(y, x2, d2),
            multiply_add(y, x3, d3),
        )
        at += LANES
    a, b = four_totals(a0, a1, a2, a3), four_totals(b0, b1, b2, b3)
    c, d = four_totals(c0, c1, c2, c3), four_totals(d0, d1, d2, d3)
    scores = totals(a, b, c, d)
    store_first(out[0], j, scores)
    store_second(out[1], j, scores)
    store_third(out[2], j, scores)
    store_fourth(out[3], j, scores)


@compiled(FAST)
def _score_one(q, k, places, first, last, out):
    for j in range(first, last):
        row, score = k[places[j]], F(0)
        for d in range(q.size):
            score += q[d] * row[d]
        out[j] = score


@compiled(FAST)
def add_rows(weights, v, places, first, last, out):
    """out[g] += Σ_j weights[g, j]·v[places[j]], first ≤ j < last: weights [G, n], v [T, V], places [n], out [G, V]."""
    g = 0
    while g + 4 <= out.shape[0]:
        _add_four(weights[g : g + 4], v, places, first, last, out[g : g + 4])
        g += 4
    while g < out.shape[0]:
        for j in range(first, last):
            _add_row(weights[g, j], v[places[j]], out[g])
        g += 1


@compiled(FAST, inline=True)
def _add_four(weights, v, places, first, last, out):
    """The sums of four heads stay in registers, WIDTH numbers of each."""
    w0, w1, w2, w3 = weights[0], weights[1], weights[2], weights[3]
    o0, o1, o2, o3 = out[0], out[1], out[2], out[3]
    at = 0
    while at < out.shape[1]:
        more = at + LANES
        a0, a1, a2, a3 = load(o0, at), load(o1, at), load(o2, at), load(o3, at)
        b0, b1, b2, b3 = load(o0, more), load(o1, more), load(o2, more), load(o3, more)
        for j in range(first, last):
            row = v[places[j]]
            x, y = load(row, at), load(row, more)
            w = spread(w0[j])
            a0, b0 = multiply_add(w, x, a0), multiply_add(w, y, b0)
            w = spread(w1[j])
            a1, b1 = multiply_add(w, x, a1), multiply_add(w, y, b1)
            w = spread(w2[j])
            a2, b2 = multiply_add(w, x, a2), multiply_add(w, y, b2)
            w = spread(w3[j])
            a3, b3 = multiply_add(w, x, a3), multiply_add(w, y, b3)
        store(o0, at, a0)
        store(o1, at, a1)
        store(o2, at, a2)
        store(o3, at, a3)
        store(o0, more, b0)
        store(o1, more, b1)
        store(o2, more, b2)
        store(o3, more, b3)
        at += WIDTH


@compiled(FAST)
def scatter_rows(weights, x, places, first, last, out):
    """out[places[j]] += Σ_g weights[g, j]·x[g], first ≤ j < last: weights [G, n], x [G, D], places [n], out [T, D]."""
    g = 0
    while g + 4 <= x.shape[0]:
        _scatter_four(weights[g : g + 4], x[g : g + 4], places, first, last, out)
        g += 4
    while g < x.shape[0]:
        for j in range(first, last):
            _add_row(weights[g, j], x[g], out[places[j]])
        g += 1


@compiled(FAST, inline=True)
def _scatter_four(weights, x, places, first, last, out):
    """WIDTH numbers of each of four heads stay in registers."""
    w0, w1, w2, w3 = weights[0], weights[1], weights[2], weights[3]
    x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
    at = 0
    while at < x.shape[1]:
        more = at + LANES
        a0, a1, a2, a3 = load(x0, at), load(x1, at), load(x2, at), load(x3, at)
        b0, b1, b2, b3 = load(x0, more), load(x1, more), load(x2, more), load(x3, more)
        for j in range(first, last):
            row = out[places[j]]
            y, z = load(row, at), load(row, more)
            w = spread(w0[j])
            y, z = multiply_add(w, a0, y), multiply_add(w, b0, z)
            w = spread(w1[j])
            y, z = multiply_add(w, a1, y), multiply_add(w, b1, z)
            w = spread(w2[j])
            y, z = multiply_add(w, a2, y), multiply_add(w, b2, z)
            w = spread(w3[j])
            y, z = multiply_add(w, a3, y), multiply_add(w, b3, z)
            store(row, at, y)
            store(row, more, z)
        at += WIDTH


@compiled(FAST)
def _add_row(weight, row, out):
    for d in range(out.size):
        out[d] += weight * row[d]


@compiled(FAST)
def highest_of(x, n):
    """The maximum of x[:n], of those that are numbers, −∞ of none; four at a time, which do not wait for each other."""
    a, b, c, d = -INFINITE, -INFINITE, -INFINITE, -INFINITE
    whole = n // 4 * 4
    for j in range(0, whole, 4):
        a = x[j] if x[j] > a else a
        b = x[j + 1] if x[j + 1] > b else b
        c = x[j + 2] if x[j + 2] > c else c
        d = x[j + 3] if x[j + 3] > d else d
    for j in range(whole, n):
        a = x[j] if x[j] > a else a
    a = b if b > a else a
    c = d if d > c else c
    return c if c > a else a


@compiled(FAST)
def lowest_of(x, n):
    """The minimum of x[:n], of those that are numbers, ∞ of none."""
    a, b, c, d = INFINITE, INFINITE, INFINITE, INFINITE
    whole = n // 4 * 4
    for j in range(0, whole, 4):
        a = x[j] if x[j] < a else a
        b = x[j + 1] if x[j + 1] < b else b
        c = x[j + 2] if x[j + 2] < c else c
        d = x[j + 3] if x[j + 3] < d else d
    for j in range(whole, n):
        a = x[j] if x[j] < a else a
    a = b if b < a else a
    c = d if d < c else c
    return c if c < a else a


@compiled(FAST)
def softmax_row(x, n):
    """Replace x[:n], fp32, by its softmax and return its maximum and the sum of e^(x − maximum)."""
    highest, total = highest_of(x, n), F(0)
    for j in range(n):
        weight = exp32(x[j] - highest)
        x[j] = weight
        total += weight
    inverse = F(1) / total
    for j in range(n):
        x[j] *= inverse
    return highest, total
