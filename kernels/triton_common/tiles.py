"""Device functions for tiles: of rows, of a head's tokens, of matrices, of residual streams.

Places outside (an unused row, a column beyond the width) are read as 0 and never written. At the end: the least work
of a kernel, and the choice of NVIDIA's assembler.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

# Whole rows, each `WIDTH` neighbouring numbers of a contiguous tensor, and the running maximum of a softmax over
# tiles.


@triton.jit
def load_rows(x, row, used, WIDTH, BW: tl.constexpr):
    """These rows of x [·, WIDTH], whole, [rows, BW ≥ WIDTH]; 0 where a row is unused and beyond the width."""
    column = tl.arange(0, BW)
    mask = used[:, None] & (column < WIDTH)[None]
    return tl.load(x + row.to(tl.int64)[:, None] * WIDTH + column[None], mask=mask, other=0.0)


@triton.jit
def store_rows(x, row, used, values, WIDTH, BW: tl.constexpr):
    """Write values [rows, BW ≥ WIDTH], in x's dtype, to the used rows of x [·, WIDTH]."""
    column = tl.arange(0, BW)
    mask = used[:, None] & (column < WIDTH)[None]
    place = x + row.to(tl.int64)[:, None] * WIDTH + column[None]
    tl.store(place, values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def running_max(largest, scores):
    """Largest score of each row so far, a finite centre to subtract, and the factor that rescales earlier sums.

        m' = max(m, max_s a_s),   c = m' or 0 where nothing is visible yet,   factor = e^(m − c)

    scores [rows, columns], −∞ where hidden; largest [rows], −∞ at first.
    """
    higher = tl.maximum(largest, tl.max(scores, axis=1))
    # −∞ − (−∞) would be NaN.
    centre = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, centre, tl.exp(largest - centre)


# A head's tokens, and matrices.
#
# Offsets have the type of the indices. Where a tile of 64-bit places would fill the registers, callers move the
# pointer to the first token or matrix, which needs 64 bits, and index from there in 32.


@triton.jit
def load_head_rows(x, token, end, head, HEADS, column, WIDTH):
    """x [tokens, HEADS, WIDTH] of one head, a tile [token, column] as stored; 0 from token `end` and WIDTH on."""
    place = (token * HEADS + head)[:, None] * WIDTH + column[None]
    return tl.load(x + place, mask=(token < end)[:, None] & (column < WIDTH)[None], other=0.0)


@triton.jit
def store_head_rows(x, tile, token, end, head, HEADS, column, WIDTH):
    """Write a tile [token, column] to x [tokens, HEADS, WIDTH] of one head, rounded to x's type.

    Nothing from token `end` and column WIDTH on.
    """
    place = (token * HEADS + head)[:, None] * WIDTH + column[None]
    mask = (token < end)[:, None] & (column < WIDTH)[None]
    tl.store(x + place, tile.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_head_scalars(x, token, end, head, HEADS):
    """x [tokens, HEADS] of one head at these tokens, in fp32; 0 from token `end` on."""
    return tl.load(x + token * HEADS + head, mask=token < end, other=0.0).to(tl.float32)


@triton.jit
def store_head_scalars(x, values, token, end, head, HEADS):
    """Write values [token] to x [tokens, HEADS] of one head, rounded to x's type; nothing from token `end` on."""
    tl.store(x + token * HEADS + head, values.to(x.dtype.element_ty), mask=token < end)


@triton.jit
def load_matrix(x, row, column, ROWS, COLUMNS):
    """x [ROWS, COLUMNS], a tile [row, column] as stored; 0 outside."""
    mask = (row < ROWS)[:, None] & ((column >= 0) & (column < COLUMNS))[None]
    return tl.load(x + row[:, None] * COLUMNS + column[None], mask=mask, other=0.0)


@triton.jit
def store_matrix(x, tile, row, column, ROWS, COLUMNS):
    """Write a tile [row, column] to x [ROWS, COLUMNS], rounded to x's type; nothing outside."""
    mask = (row < ROWS)[:, None] & ((column >= 0) & (column < COLUMNS))[None]
    tl.store(x + row[:, None] * COLUMNS + column[None], tile.to(x.dtype.element_ty), mask=mask)


# Many small square matrices [M, n, n] in registers.


@triton.jit
def matrix_tile(MATRICES, SIZE: tl.constexpr, N: tl.constexpr, BM: tl.constexpr):
    """Return the places of the program's BM matrices, in tiles N ≥ SIZE wide.

    First entries [BM, 1, 1], rows [1, N, 1], columns [1, 1, N], and the mask of the entries that exist.
    """
    matrix = (tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM))[:, None, None]
    row, column = tl.arange(0, N)[None, :, None], tl.arange(0, N)[None, None]
    mask = (matrix < MATRICES) & (row < SIZE) & (column < SIZE)
    return matrix * SIZE * SIZE, row, column, mask


# Residual streams [B, T, n, D] and their coefficients: n rows a token, in tuples.
#
# n is a compile-time number, so that a tuple is n tiles of one layout: nothing moves between threads except in sums
# over channels. A program owns its tokens and loops over their channels, which keeps such sums in one fixed order.


@triton.jit
def token_tile(TOKENS, BT: tl.constexpr):
    """The program's tokens [BT], and which of them exist."""
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    return token, token < TOKENS


@triton.jit
def channel_tile(start, there, D, BD: tl.constexpr):
    """Channels [BD] from start on, and the mask [BT, BD] of those that exist."""
    channel = start + tl.arange(0, BD)
    return channel, there[:, None] & (channel < D)[None]


@triton.jit
def load_streams(x, token, channel, mask, D, N: tl.constexpr):
    """The N streams of x [M, N, D] at these tokens and channels: a tuple of tiles [BT, BD] in fp32."""
    rows = ()
    for i in tl.static_range(N):
        rows += (load_stream(x, i, token, channel, mask, D, N),)
    return rows


@triton.jit
def load_stream(x, i, token, channel, mask, D, N: tl.constexpr):
    """Stream i of x [M, N, D] at these tokens and channels, a tile [BT, BD] in fp32."""
    return tl.load(x + ((token * N + i) * D)[:, None] + channel[None], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_stream(x, row, i, token, channel, mask, D, N: tl.constexpr):
    """Write stream i of x [M, N, D], rounded to x's type."""
    tl.store(x + ((token * N + i) * D)[:, None] + channel[None], row.to(x.dtype.element_ty), mask=mask)


@triton.jit
def load_coefficients(h, token, there, N: tl.constexpr):
    """The N coefficients of h [M, N] at these tokens: a tuple of vectors [BT] in fp32."""
    numbers = ()
    for i in tl.static_range(N):
        numbers += (tl.load(h + token * N + i, mask=there, other=0.0).to(tl.float32),)
    return numbers


@triton.jit
def store_coefficients(h, numbers, token, there, N: tl.constexpr):
    """Write N vectors [BT] of numbers to h [M, N] at these tokens, rounded to h's type."""
    for i in tl.static_range(N):
        tl.store(h + token * N + i, numbers[i].to(h.dtype.element_ty), mask=there)


@triton.jit
def zero_coefficients(token, N: tl.constexpr):
    """A tuple of N vectors [BT] of zeros, to be summed into."""
    numbers = ()
    for _ in tl.static_range(N):
        numbers += (tl.zeros((token.shape[0],), tl.float32),)
    return numbers


@triton.jit
def weighted_sum(weights, rows, N: tl.constexpr):
    """Σ_i weights_i·rows_i [BT, BD]."""
    total = weights[0][:, None] * rows[0]
    for i in tl.static_range(1, N):
        total += weights[i][:, None] * rows[i]
    return total


@triton.jit
def add_products(sums, rows, others, N: tl.constexpr, OTHERS: tl.constexpr):
    """N·OTHERS vectors [BT]: sums_(i·OTHERS + j) + rows_i·others_j, the products summed over the tile's channels.

    rows: N tiles, others: OTHERS tiles, [BT, BD]; sums: vectors [BT], in fp32.
    """
    added = ()
    for i in tl.static_range(N):
        for j in tl.static_range(OTHERS):
            added += (sums[i * OTHERS + j] + tl.sum(rows[i] * others[j], axis=1),)
    return added


# The least work of a kernel, operations and bytes, for a roofline.


@dataclass(frozen=True)
class Work:
    """One kernel's share of a call.

    kernel  its name
    way     "forward" or "backward"
    flops   multiplications and additions, a fused one counting as two
    bytes   of main memory: every input read once and every output written once, what stays in caches not at all
    """

    kernel: str
    way: str
    flops: float
    bytes: float


def nbytes(*tensors: Tensor | None) -> int:
    """Return the bytes of all tensors [...] together, None as 0; works on the meta device."""
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)


def listed_pairs(queries: int, keys: int, places: int) -> int:
    """Count Σ_t min(places, keys that query t sees), the entries of causal lists of so many places; others hold −1.

    Query t stands at position t + keys − queries. More queries than keys have no such order: all places count.
    """
    most = min(places, keys)
    ramp = max(0, most - 1 - (keys - queries)) if queries <= keys else 0  # queries that see fewer than `most`
    return queries * most - ramp * (ramp + 1) // 2


# The choice of NVIDIA's assembler (ptxas) on Hopper GPUs: one that computes matrix descriptors in order.
#
# ptxas 12.8, which Triton 3.6 and 3.7 bring for GPUs before Blackwell, moves the addition that makes a wgmma
# descriptor out of a loop and before the instruction that loads what is added to: seen in the machine code of the
# delta rule's kernels in some of their launch configurations, of which one H100 read memory out of range and returned
# wrong numbers without an error. ptxas 12.9 and 13.1, theirs for Blackwell, keep the order on the same input, and
# compile for Hopper as well; Triton 3.8 and 3.9 have no older one.

SOUND = (12, 9)
HOPPER = 9
_VARIABLE = "TRITON_PTXAS_PATH"


@functools.cache
def choose_ptxas() -> None:
    """Set TRITON_PTXAS_PATH to Triton's later ptxas where this process has a Hopper GPU and the variable is not set.

    Has to run before the first kernel is compiled. Kernels of other libraries in the process are compiled by it, too.
    """
    if _VARIABLE in os.environ or not torch.cuda.is_available():
        return
    if torch.cuda.get_device_capability()[0] == HOPPER:
        take_sound_ptxas()


def take_sound_ptxas() -> None:
    """Set TRITON_PTXAS_PATH to Triton's later ptxas, if its usual one is older than SOUND."""
    from triton import knobs

    usual, later = knobs.nvidia.ptxas, knobs.nvidia.ptxas_blackwell
    if _version(usual.version) < SOUND <= _version(later.version):
        os.environ[_VARIABLE] = later.path


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
