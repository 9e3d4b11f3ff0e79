"""exp and log of fp32 in plain arithmetic, which compiles to vectors where calls of a library would not."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.numba_common.compiled import EXACT, compiled

F = np.float32
I = np.int32  # noqa: E741 - beside F

INFINITE = F(np.inf)

LOWEST, HIGHEST = F(-87.0), F(88.0)
"""Arguments between which e^x is a normal number."""

LN2_HIGH, LN2_LOW = F(0.693359375), F(-2.12194440e-4)
"""ln 2 as a sum whose first term has few bits, so that its products with small integers are exact."""

ROOT_HALF = I(0x3F3504F3)
"""The bits of √½."""


@intrinsic
def from_bits(_context, bits):
    """The fp32 whose bits are an int32's."""

    def code(_, builder, __, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), code


@intrinsic
def to_bits(_context, x):
    """The bits of an fp32 as an int32."""

    def code(_, builder, __, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), code


@compiled(EXACT, inline=True)
def exp32(x):
    """e^x within 1e-7 of it for −87 ≤ x ≤ 88, beyond these the value there; NaN stays.

    2^n·e^r with |r| ≤ ln 2/2 and a polynomial of degree 7 (Moshier's Cephes, expf).
    """
    inside = x if x > LOWEST else LOWEST
    inside = inside if inside < HIGHEST else HIGHEST
    n = np.rint(inside * F(1.44269504))
    r = inside - n * LN2_HIGH - n * LN2_LOW
    p = F(1.9875691500e-4) * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    y = (p * r * r + r + F(1)) * from_bits(I((I(n) + I(127)) << I(23)))
    return y if x == x else x


@compiled(EXACT, inline=True)
def log32(x):
    """ln x within 1e-7·max(|ln x|, 1e-2) of it, for normal x > 0.

    x = 2^n·(1 + m) with √½ ≤ 1 + m < √2 and a polynomial of degree 9 (Moshier's Cephes, logf).
    """
    bits = to_bits(x) - ROOT_HALF
    n = F(bits >> I(23))
    m = from_bits(I((bits & I(0x007FFFFF)) + ROOT_HALF)) - F(1)
    p = F(7.0376836292e-2) * m + F(-1.1514610310e-1)
    p = p * m + F(1.1676998740e-1)
    p = p * m + F(-1.2420140846e-1)
    p = p * m + F(1.4249322787e-1)
    p = p * m + F(-1.6668057665e-1)
    p = p * m + F(2.0000714765e-1)
    p = p * m + F(-2.4999993993e-1)
    p = p * m + F(3.3333331174e-1)
    y = p * m * m * m + n * LN2_LOW - F(0.5) * m * m
    return m + y + n * LN2_HIGH
