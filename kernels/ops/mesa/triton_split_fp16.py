"""Device functions of products of fp32 tiles as fp16 parts.

An fp16 number has 11 bits where a bf16 one has 8, so that two parts hold 22, nearly all of fp32, and one is eight
times as exact. But its range is 2⁻²⁴ to 2¹⁶: what is taken apart is first divided by a number near its largest.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def power_below(x):
    """The power of two, fp32, at or below the largest |x_i| of a vector x [n] in fp32; 1 where all of it is 0."""
    most = tl.max(tl.abs(x), axis=0)
    exponent = most.to(tl.int32, bitcast=True) & 0x7F800000
    return tl.where(most > 0, exponent.to(tl.float32, bitcast=True), 1.0)


@triton.jit
def split_fp16(x):
    """x [...] in fp32 as two fp16 tiles [...], high and low, whose sum is x to 22 bits."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def product_split_left(x, y, total, PARTS: tl.constexpr):
    """total + x·y [M, N] in fp32: x [M, K] in fp32 is split into PARTS (1 or 2) fp16 tiles, y [K, N] is fp16."""
    if PARTS == 1:
        total = tl.dot(x.to(tl.float16), y, total)
    else:
        high, low = split_fp16(x)
        total = tl.dot(high, y, tl.dot(low, y, total))
    return total


@triton.jit
def product_split_both(x, high, low, total, PARTS: tl.constexpr):
    """total + x·(high + low) [M, N] in fp32, without the product of low parts.

    x [M, K] in fp32 is split into PARTS (1 or 2) fp16 tiles; high, low [K, N] in fp16.
    """
    if PARTS == 1:
        part = x.to(tl.float16)
        total = tl.dot(part, high, tl.dot(part, low, total))
    else:
        x_high, x_low = split_fp16(x)
        total = tl.dot(x_high, high, tl.dot(x_high, low, tl.dot(x_low, high, total)))
    return total


@triton.jit
def reciprocal(x):
    """1/x of x [...] > 0, elementwise in fp32.

    Two instructions, where a division takes ten for numbers near the ends of the range.
    """
    root = tl.rsqrt(x)
    return root * root
