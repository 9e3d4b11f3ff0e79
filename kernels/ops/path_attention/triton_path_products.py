"""Products of the paths of a stretch's blocks, and the gradients of paths (triton_backward.py explains the scales).

    P_b = Π_{c<b} (I − D_c) over the blocks c of the stretch before b,   stored as E_b = I − P_b
    the stretch's own turn: D = E behind its last block

Buffers of stretches are in the order of their first tokens, [⌈T/STRETCH⌉, heads, ...], with STRETCH = UNITS·C.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_tiles import LN2, load_block, minus_turned, store_block, unit_of
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.tuning import Tuned


@triton.jit
def _blocks_of(stretches, firsts, cu, C: tl.constexpr, UNITS: tl.constexpr):
    """The program's stretch: its number, its place in buffers, its first block, how many it has, does one follow."""
    row = tl.program_id(0)
    sequence, _, end, first = chunk_bounds(stretches, cu, row, UNITS * C)
    number = tl.load(stretches + row * 2 + 1)
    block = tl.load(firsts + tl.maximum(sequence, 0)).to(tl.int64) + number * UNITS
    count = tl.minimum(tl.cdiv(end - first, C), UNITS)
    return number, first // (UNITS * C), block, count, first + UNITS * C < end


@triton.jit
def products(
    turns, prefix, far_turns, stretches, firsts, cu, HEADS,
    C: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """E of every block of the stretches that have one before them, BR rows a program; HEADS: KV heads.

    in   turns [M, HEADS, K, K]
    out  prefix [M, HEADS, K, K]; far_turns [·, HEADS, K, K]
    """
    number, place, block, count, _ = _blocks_of(stretches, firsts, cu, C, UNITS)
    head, row, column = tl.program_id(1), tl.program_id(2) * BR + tl.arange(0, BR), tl.arange(0, K)
    if number > 0:
        unit = tl.where(row[:, None] == column[None], 1.0, 0.0)
        product = unit
        for own in range(block, block + count):
            at = (own * HEADS + head) * K * K
            # P_{b+1} = P_b − P_b·D_b
            store_block(prefix + at, unit - product, row, column, K)
            product = minus_turned(product, turns + at, K, False)
        store_block(far_turns + (place * HEADS + head) * K * K, unit - product, row, column, K)


@triton.jit
def products_back(
    turns, query, far_dquery, far_dturns, dprefix, stretches, firsts, cu, SLOT, SLOT_KV, HEADS, GROUP,
    C: tl.constexpr, K: tl.constexpr, UNITS: tl.constexpr, BR: tl.constexpr, SPANNED: tl.constexpr,
):  # fmt: skip
    """Back through `products`: the gradient of the product behind every block, BR rows a program.

    in   turns, query; far_dquery [2, ·, HEADS, STRETCH, K], far_dturns [2, ·, KV_HEADS, K, K] in the slot of the last
         span, SPANNED stretches of which are in one
    out  dprefix [M, KV_HEADS, K, K]
    """
    number, place, block, count, follows = _blocks_of(stretches, firsts, cu, C, UNITS)
    kv, KV_HEADS = tl.program_id(1), HEADS // GROUP
    row, column, line = tl.program_id(2) * BR + tl.arange(0, BR), tl.arange(0, K), tl.arange(0, C)
    if number > 0:
        slot = last_slot(number, SPANNED)
        total = tl.zeros((BR, K), tl.float32)
        if follows:
            # D = I − P behind the last block
            total -= load_block(far_dturns + (slot * SLOT_KV + place * KV_HEADS + kv) * K * K, row, column, K)
        for back in range(1, count + 1):
            own = block + count - back
            at = (own * KV_HEADS + kv) * K * K
            store_block(dprefix + at, total, row, column, K)
            # dP_b = dP_{b+1}·(I − D_b)ᵀ + Σ dqᵀ·q̃, dq at the start of the stretch
            total = minus_turned(total, turns + at, K, True)
            for head in range(kv * GROUP, (kv + 1) * GROUP):
                queries = load_block(query + (own * HEADS + head) * C * K, line, column, K)
                far = far_dquery + (slot * SLOT + place * HEADS + head) * UNITS * C * K
                dq = load_block(far + (count - back) * C * K, line, row, K).to(queries.dtype)
                total += tl.dot(tl.trans(dq), queries, input_precision="ieee")


@triton.jit
def last_slot(number, SPANNED: tl.constexpr):
    """The slot, 0 or 1 (int64), that the last span wrote for the stretch of this number, a scalar of at least 1."""
    return ((number - 1) // SPANNED % 2).to(tl.int64)


@triton.jit
def _turn_gradients(
    copies, dcopies, prefix, dprefix, dturns, table, cu, span, SLOT, HEADS,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, UNITS: tl.constexpr, NEAR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Gradients of the turns of all units; a tile [BK, BK] a program.

    in   copies and dcopies [M, HEADS, UNITS·C, K], near prefix and dprefix [M, HEADS, K, K]; HEADS: KV heads
    out  dturns [M, HEADS, K, K]; far [2, ·, HEADS, K, K], read from one slot, written to the other
    """
    sequence, _, _, unit, number, start, _ = unit_of(table, cu, tl.program_id(0), span, C, UNITS, NEAR)
    own = unit * HEADS + tl.program_id(1)
    ahead = tl.minimum(number - start, UNITS)
    if (sequence >= 0) & (NEAR | (ahead > 0)):
        above = tl.program_id(2) // (K // BK) * BK + tl.arange(0, BK)
        column = tl.program_id(2) % (K // BK) * BK + tl.arange(0, BK)
        total = tl.zeros((BK, BK), tl.float32)
        for step in range(0, (ahead * C).to(tl.int32), BC):
            row = step + tl.arange(0, BC)
            # dD = −Σ_j k̃_j(before the unit) ⊗ dk̃_j(after it)
            keys = load_block(copies + own * UNITS * C * K, row, above, K)
            after = load_block(dcopies + own * UNITS * C * K, row, column, K)
            total -= tl.dot(tl.trans(keys), after, input_precision="ieee")
        if NEAR:
            if dprefix is not None:
                # dD_b = −P_bᵀ·dP_{b+1},   P_b = I − E_b, where the stretch has one before it
                whole = load_block(dprefix + own * K * K, above, column, K)
                total -= tl.where(start > 0, whole, 0.0)
                for row_start in range(tl.where(start > 0, 0, K), K, BK):
                    row = row_start + tl.arange(0, BK)
                    turned = load_block(prefix + own * K * K, row, above, K)
                    after = load_block(dprefix + own * K * K, row, column, K)
                    total += tl.dot(tl.trans(turned), after, input_precision="ieee")
            store_block(dturns + own * K * K, total * LN2, above, column, K)
        else:
            if span > 0:
                total += load_block(dturns + ((span + 1) % 2 * SLOT + own) * K * K, above, column, K)
            store_block(dturns + (span % 2 * SLOT + own) * K * K, total, above, column, K)


turn_gradients = Tuned(
    _turn_gradients,
    [
        triton.Config({"BC": rows}, num_warps=4, num_stages=stages)
        for rows, stages in ((64, 3), (32, 4), (64, 2), (32, 2))
    ],
    ["C", "K", "BK"],
)
