"""The gradient of triton_prepare.py: the formulas of blocks_backward.py, block by block.

inner_back    a block and query head      dS inside the block, d of passed, dq, and of every token the sums of dS over
                                          its keys less those over its queries
gate_back     a sequence and query head   dg_s = Σ of those over the tokens from s on: what stays is Σ_{i ≥ s > j} dS_ij
group_back    a block, KV head and tile   the query heads' sums: dU, and the parts of dk and dw that no C × C system
                                          stands between
compact_back  a block and KV head         back through the triangular system: dk, dw, dβ
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.path_attention.triton_tiles import load_block, store_block, tokens_fp32
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import load_head_scalars, store_head_rows


@triton.jit
def _slopes(
    v, grad, lse, delta, logits, token, end, head, kv, own, TOKENS, HEADS, GROUP, VALUES,
    C: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dS_ij = P_ij·(do_i·v_j − δ_i) [C, C] in fp32 inside a block, of one query head.

    in         v [T, KV_HEADS, VALUES], grad = do [T, HEADS, VALUES], lse [T, HEADS], delta [HEADS, T],
               logits [M, HEADS, C, C]
    place      token [C] and end of the sequence; head, its KV head kv; own, the place of block and head in logits
    sizes      TOKENS: T; HEADS, GROUP; VALUES
    constants  C tokens of a block; V ≥ VALUES; BK columns of a tile; PRECISION of products
    """
    row = tl.arange(0, C)
    ds = tl.zeros((C, C), tl.float32)
    for start in range(0, V, BK):
        column = start + tl.arange(0, BK)
        dout = tokens_fp32(grad, token, end, head, HEADS, column, VALUES)
        values = tokens_fp32(v, token, end, kv, HEADS // GROUP, column, VALUES)
        # dS_ij = P_ij·(do_i·v_j − δ_i)
        ds += tl.dot(dout, tl.trans(values), input_precision=PRECISION)
    ds -= load_head_scalars(delta + tl.cast(head, tl.int64) * TOKENS, token, end, 0, 1)[:, None]
    lse_i = load_head_scalars(lse, token, end, head, HEADS)
    return ds * tl.exp(load_block(logits + own * C * C, row, row, C) - lse_i[:, None])


@triton.jit
def inner_back(
    k, v, w, grad, lse, delta, logits, skipped, u, dquery, across, received, dlogits, dpassed, dq, net, table, cu,
    scale, TOKENS, HEADS, GROUP, WIDTH, VALUES,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Back through `inner`: dq and, of every token, the net sums of dS that its gate gets.

    in      inputs: k, v [T, KV_HEADS, ·], w; grad = do, lse [T, HEADS], delta [HEADS, T]
            of the block: logits, skipped, u
            from other blocks: dquery [M, HEADS, C, K], across, received [M, HEADS, C]
    out     dlogits, dpassed [M, HEADS, C, C], dq [T, HEADS, WIDTH], net [M, HEADS, C] or None without gates
    layout  table, cu; TOKENS: T
    """
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, kv, KV_HEADS = tl.arange(0, C), head // GROUP, HEADS // GROUP
        token, own, own_kv = first + row, block * HEADS + head, block * KV_HEADS + kv
        ds = _slopes(
            v, grad, lse, delta, logits, token, end, head, kv, own, TOKENS, HEADS, GROUP, VALUES, C, V, BV, PRECISION
        )  # fmt: skip
        store_block(dlogits + own * C * C, ds, row, row, C)
        if net is not None:
            # net_t = Σ_j dS_tj − Σ_i dS_it, of this block and of the others
            sums = tl.load(across + own * C + row)
            sums += tl.sum(ds, 1) - tl.sum(ds, 0) - tl.load(received + own * C + row)
            tl.store(net + own * C + row, sums)
        if w is not None:
            # dpassed = −tril(dS·skippedᵀ + dq̃·Uᵀ)
            dpassed_tile = tl.dot(
                ds, tl.trans(load_block(skipped + own_kv * C * C, row, row, C)), input_precision=PRECISION
            )
            for start in range(0, K, BK):
                column = start + tl.arange(0, BK)
                dq_turned = load_block(dquery + own * C * K, row, column, K)
                u_tile = load_block(u + own_kv * C * K, row, column, K)
                dpassed_tile += tl.dot(dq_turned, tl.trans(u_tile), input_precision=PRECISION)
            dpassed_tile = tl.where(row[None] <= row[:, None], -dpassed_tile, 0.0)
            store_block(dpassed + own * C * C, dpassed_tile, row, row, C)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            keys = tokens_fp32(k, token, end, kv, KV_HEADS, column, WIDTH)
            # dq = s·(dq̃ + dS·K + dpassed·W)
            total = load_block(dquery + own * C * K, row, column, K)
            total += tl.dot(ds, keys, input_precision=PRECISION)
            if w is not None:
                w_tile = tokens_fp32(w, token, end, kv, KV_HEADS, column, WIDTH)
                total += tl.dot(dpassed_tile, w_tile, input_precision=PRECISION)
            store_head_rows(dq, total * scale, token, end, head, HEADS, column, WIDTH)


@triton.jit
def gate_back(net, dg, firsts, cu, HEADS, C: tl.constexpr):
    """dg_s = Σ_{t ≥ s} net_t from the end of the sequence, block by block: net [M, HEADS, C] -> dg [T, HEADS]."""
    sequence, head, row = tl.program_id(0), tl.program_id(1), tl.arange(0, C)
    begin, end = tl.load(cu + sequence).to(tl.int64), tl.load(cu + sequence + 1).to(tl.int64)
    first, stop = tl.load(firsts + sequence).to(tl.int64), tl.load(firsts + sequence + 1).to(tl.int64)
    later = 0.0
    for back in range(1, stop - first + 1):
        block = stop - back
        line = tl.load(net + (block * HEADS + head) * C + row)
        token = begin + (block - first) * C + row
        # dg_s = Σ_{t ≥ s} net_t
        sums = tl.cumsum(line, 0, reverse=True) + later
        tl.store(dg + token * HEADS + head, sums.to(dg.dtype.element_ty), mask=token < end)
        later += tl.sum(line, 0)


@triton.jit
def group_back(
    q, w, u, skipped, passed, dlogits, dpassed, dquery, dkey, dturns, du, dk, dw, table, cu,
    scale, HEADS, GROUP, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum over the query heads of a group, a tile of BK columns a program.

    in   q [T, HEADS, WIDTH], w; u, skipped, passed of the block; dlogits, dpassed of `inner_back`;
         from other blocks: dquery [M, HEADS, C, K], dkey [M, KV_HEADS, C, K], dturns [M, KV_HEADS, K, K]
    out  du, dk, dw [M, KV_HEADS, C, K] in fp32; without w only dk
    """
    block, kv, KV_HEADS = tl.program_id(0).to(tl.int64), tl.program_id(1), HEADS // GROUP
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, own_kv = tl.arange(0, C), block * KV_HEADS + kv
        token, column = first + row, tl.program_id(2) * BK + tl.arange(0, BK)
        dk_tile = load_block(dkey + own_kv * C * K, row, column, K).to(tl.float32)
        if w is not None:
            skipped_tile = load_block(skipped + own_kv * C * C, row, row, C)
            # dw = −skipped·dk̃ + U·dD + Σ_h dpassedᵀ·q,   dU = W·dDᵀ − Σ_h passedᵀ·dq̃
            dw_tile = -tl.dot(skipped_tile, dk_tile, input_precision=PRECISION)
            du_tile = tl.zeros((C, BK), tl.float32)
            for start in range(0, K, BK):
                other = start + tl.arange(0, BK)
                w_tile = tokens_fp32(w, token, end, kv, KV_HEADS, other, WIDTH)
                u_tile = load_block(u + own_kv * C * K, row, other, K)
                across = load_block(dturns + own_kv * K * K, column, other, K)
                du_tile += tl.dot(w_tile, tl.trans(across), input_precision=PRECISION)
                along = load_block(dturns + own_kv * K * K, other, column, K)
                dw_tile += tl.dot(u_tile, along, input_precision=PRECISION)
        for head in range(kv * GROUP, (kv + 1) * GROUP):
            own = block * HEADS + head
            queries = tokens_fp32(q, token, end, head, HEADS, column, WIDTH) * scale
            ds = load_block(dlogits + own * C * C, row, row, C)
            # dk = dk̃ + Σ_h dSᵀ·q
            dk_tile += tl.dot(tl.trans(ds), queries, input_precision=PRECISION)
            if w is not None:
                dpassed_tile = load_block(dpassed + own * C * C, row, row, C)
                dw_tile += tl.dot(tl.trans(dpassed_tile), queries, input_precision=PRECISION)
                dq_turned = load_block(dquery + own * C * K, row, column, K)
                passed_tile = load_block(passed + own * C * C, row, row, C)
                du_tile -= tl.dot(tl.trans(passed_tile), dq_turned, input_precision=PRECISION)
        store_block(dk + own_kv * C * K, dk_tile, row, column, K)
        if w is not None:
            store_block(du + own_kv * C * K, du_tile, row, column, K)
            store_block(dw + own_kv * C * K, dw_tile, row, column, K)


@triton.jit
def _row_products(
    x, y, token, end, head, HEADS, WIDTH, C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The product X·Yᵀ [C, C] of a block's rows of one head of x and y [T, HEADS, WIDTH], in fp32."""
    met = tl.zeros((C, C), tl.float32)
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        left = tokens_fp32(x, token, end, head, HEADS, column, WIDTH)
        right = tokens_fp32(y, token, end, head, HEADS, column, WIDTH)
        met += tl.dot(left, tl.trans(right), input_precision=PRECISION)
    return met


@triton.jit
def _system_back(
    k, w, beta, inverse, skipped, u, passed, dlogits, dkey, du, token, end, kv, block, own_kv, HEADS, GROUP, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Back through the triangular system Y: d(W·Kᵀ), d(W·Wᵀ) plus its transpose, and their part of dβ.

    in         inputs: k, w [T, KV_HEADS, WIDTH], beta [T, KV_HEADS]
               of the forward: inverse, skipped [M, KV_HEADS, C, C], u [M, KV_HEADS, C, K], passed [M, HEADS, C, C]
               gradients: dlogits [M, HEADS, C, C], dkey, du [M, KV_HEADS, C, K]
    out        d(W·Kᵀ), d(W·Wᵀ) + d(W·Wᵀ)ᵀ [C, C] and the part of dβ [C], in fp32
    place      token [C], the block's, end, that of its sequence; kv, block, own_kv = block·KV_HEADS + kv
    sizes      HEADS, GROUP: query heads, and those of a KV head; WIDTH: of keys
    constants  C tokens a block, K: WIDTH padded, BK columns a tile, PRECISION of products
    """
    row, KV_HEADS = tl.arange(0, C), HEADS // GROUP
    earlier = row[None] < row[:, None]
    dskipped, met_rows = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
    for head in range(kv * GROUP, (kv + 1) * GROUP):
        own = block * HEADS + head
        passed_tile = load_block(passed + own * C * C, row, row, C)
        ds = load_block(dlogits + own * C * C, row, row, C)
        # d skipped = −Σ_h passedᵀ·dS − W·dk̃ᵀ
        dskipped -= tl.dot(tl.trans(passed_tile), ds, input_precision=PRECISION)
    for start in range(0, K, BK):
        column = start + tl.arange(0, BK)
        w_tile = tokens_fp32(w, token, end, kv, KV_HEADS, column, WIDTH)
        dk_tile = load_block(dkey + own_kv * C * K, row, column, K).to(tl.float32)
        u_tile = load_block(u + own_kv * C * K, row, column, K)
        du_tile = load_block(du + own_kv * C * K, row, column, K)
        dskipped -= tl.dot(w_tile, tl.trans(dk_tile), input_precision=PRECISION)
        # dU·Uᵀ
        met_rows += tl.dot(du_tile, tl.trans(u_tile), input_precision=PRECISION)
    back = tl.trans(load_block(inverse + own_kv * C * C, row, row, C))
    # through Y: d(Diag(β)·tril(W·Kᵀ)) = Yᵀ·d skipped
    dmet = tl.dot(back, dskipped, input_precision=PRECISION)
    # and d(Diag(β)·tril(W·Wᵀ)) = −tril((Yᵀ·d skipped)·skippedᵀ + Yᵀ·dU·Uᵀ, −1)
    dgram = tl.dot(
        dmet, tl.trans(load_block(skipped + own_kv * C * C, row, row, C)), input_precision=PRECISION
    )
    dgram += tl.dot(back, met_rows, input_precision=PRECISION)
    dmet, dgram = tl.where(earlier, dmet, 0.0), tl.where(earlier, -dgram, 0.0)
    # dβ = Σ over columns of both, times W·Kᵀ and W·Wᵀ
    beta_rows = load_head_scalars(beta, token, end, kv, KV_HEADS)
    # A matrix [C, C] fills a quarter of the registers or half of them: these two are made where they are used.
    dbeta_rows = tl.sum(dmet * _row_products(w, k, token, end, kv, KV_HEADS, WIDTH, C, K, BK, PRECISION), 1)
    dbeta_rows += tl.sum(dgram * _row_products(w, w, token, end, kv, KV_HEADS, WIDTH, C, K, BK, PRECISION), 1)
    dgram *= beta_rows[:, None]
    return dmet * beta_rows[:, None], dgram + tl.trans(dgram), dbeta_rows


@triton.jit
def compact_back(
    k, w, beta, inverse, skipped, u, passed, dlogits, dkey, du, dk_part, dw_part, dk, dw, dbeta, table, cu,
    HEADS, GROUP, WIDTH,
    C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Back through `compact`: dk, dw and dβ of one block and KV head.

    in   k, w [T, KV_HEADS, WIDTH], beta; inverse, skipped, u, passed of the block; dlogits; dkey, du, dk_part,
         dw_part [M, KV_HEADS, C, K] of `group_back`
    out  dk, dw [T, KV_HEADS, WIDTH], dbeta [T, KV_HEADS]; without w only dk
    """
    block, kv, KV_HEADS = tl.program_id(0).to(tl.int64), tl.program_id(1), HEADS // GROUP
    sequence, _, end, first = chunk_bounds(table, cu, block, C)
    if sequence >= 0:
        row, own_kv = tl.arange(0, C), block * KV_HEADS + kv
        token = first + row
        if w is not None:
            dmet, dgram, dbeta_rows = _system_back(
                k, w, beta, inverse, skipped, u, passed, dlogits, dkey, du, token, end, kv, block, own_kv,
                HEADS, GROUP, WIDTH, C, K, BK, PRECISION,
            )  # fmt: skip
            back = tl.trans(load_block(inverse + own_kv * C * C, row, row, C))
            beta_rows = load_head_scalars(beta, token, end, kv, KV_HEADS)
        for start in range(0, K, BK):
            column = start + tl.arange(0, BK)
            dk_tile = load_block(dk_part + own_kv * C * K, row, column, K)
            if w is not None:
                w_tile = tokens_fp32(w, token, end, kv, KV_HEADS, column, WIDTH)
                keys = tokens_fp32(k, token, end, kv, KV_HEADS, column, WIDTH)
                # d(Diag(β)·W) = Yᵀ·dU, of which dβ gets its product with W
                right = tl.dot(
                    back, load_block(du + own_kv * C * K, row, column, K), input_precision=PRECISION
                )
                dbeta_rows += tl.sum(right * w_tile, 1)
                # dw = dw_part + β·Yᵀ·dU + d(W·Kᵀ)·K + (d(W·Wᵀ) + its transpose)·W
                dw_tile = load_block(dw_part + own_kv * C * K, row, column, K) + beta_rows[:, None] * right
                dw_tile += tl.dot(dmet, keys, input_precision=PRECISION)
                dw_tile += tl.dot(dgram, w_tile, input_precision=PRECISION)
                # dk = dk_part + d(W·Kᵀ)ᵀ·W
                dk_tile += tl.dot(tl.trans(dmet), w_tile, input_precision=PRECISION)
                store_head_rows(dw, dw_tile, token, end, kv, KV_HEADS, column, WIDTH)
            store_head_rows(dk, dk_tile, token, end, kv, KV_HEADS, column, WIDTH)
        if w is not None:
            tl.store(dbeta + token * KV_HEADS + kv, dbeta_rows.to(dbeta.dtype.element_ty), mask=token < end)
