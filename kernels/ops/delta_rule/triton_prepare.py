"""Preparation of chunks for the recurrence across them, of all chunks at once and in one kernel.

    P and A (triton_intra_chunk.py)  →  Z (triton_triangle.py)  →  W, U and the decays (triton_operands.py)

A never leaves the processor; P and Z are written once, for the outputs and for the backward pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_arguments import ChunkOperands, Inputs
from kernels.ops.delta_rule.triton_intra_chunk import products_channels, products_shared
from kernels.ops.delta_rule.triton_operands import empty_operands, write_operands
from kernels.ops.delta_rule.triton_tiles import CHUNK, from_token
from kernels.ops.delta_rule.triton_triangle import invert_triangle
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import load_head_scalars, store_head_rows
from kernels.triton_common.tuning import Tuned


@triton.jit
def _prepare(
    q, k, v, g, beta, p, z, queries, keys, from_start, to_end, reads, values, whole, table, cu, H, HQ, HK, HV,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """P, Z and all of `ChunkOperands`, for one chunk and head.

    inputs     q, k, v, g, beta as in `Inputs`
    outputs    p, z [tokens, H, C]; queries, keys, from_start, to_end, reads, values, whole as in `ChunkOperands`
    layout     table, cu
    sizes      H, HQ, HK, HV heads
    constants  K, V widths; SHARED: one gate a head; PRECISION of the triangle's products; C tokens a chunk;
               BK columns a tile of the products, BO of the operands
    """
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        dtype: tl.constexpr = z.dtype.element_ty
        token = tl.arange(0, C)
        last = tl.minimum(end - first, C).to(tl.int32)
        q, k = from_token(q, first, HQ, K), from_token(k, first, HK, K)
        v, g = from_token(v, first, HV, V), from_token(g, first, H, 1 if SHARED else K)
        beta, p, z = from_token(beta, first, H, 1), from_token(p, first, H, C), from_token(z, first, H, C)
        # P, A
        if SHARED:
            product, blocks, overlap = products_shared(q, k, g, token, last, head, H, HQ, HK, dtype, K, C, BK)
        else:
            product, blocks, overlap = products_channels(
                q, k, g, token, last, head, H, HQ, HK, dtype, K, C, BK
            )
        store_head_rows(p, product, token, last, head, H, token, C)
        # Z = (I + A·Diag(β))⁻¹·A
        strength = load_head_scalars(beta, token, last, head, H)
        solved = invert_triangle(blocks, overlap, strength, PRECISION, C)
        store_head_rows(z, solved, token, last, head, H, token, C)
        write_operands(
            q, k, v, g, solved * strength[None], queries, keys, from_start, to_end, reads, values, whole,
            first, last, chunk, head, H, HQ, HK, HV, dtype, K, V, SHARED, C, BO,
        )  # fmt: skip


def _tiles(*sizes: tuple[int, int, int, int]) -> list[triton.Config]:
    return [
        triton.Config({"BK": width, "BO": operand_width}, num_warps=warps, num_stages=stages)
        for width, operand_width, warps, stages in sizes
    ]


_prepare_tuned = Tuned(
    _prepare,
    _tiles((64, 64, 4, 1), (32, 32, 4, 1), (64, 32, 4, 1), (64, 64, 8, 1), (64, 64, 4, 2), (32, 64, 4, 1)),
    ["K", "V", "SHARED"],
)


def prepare(x: Inputs, layout: ChunkLayout, dtype: torch.dtype) -> tuple[Tensor, Tensor, ChunkOperands]:
    """Compute P and Z [B, T, H, CHUNK] and the operands of the inter-chunk recurrence, in `dtype`.

    Where that has 16 bits, products of the triangle are in TF32. With random or correlated keys their errors are a
    tenth of the rounding of Z; with nearly equal keys and a β near 2, where 16 bits miss the field's criterion by
    themselves, outputs lose a fifth more.
    """
    p, z = (torch.empty(*x.beta.shape, CHUNK, dtype=dtype, device=x.q.device) for _ in range(2))
    operands = empty_operands(x, layout, dtype)
    precision = "ieee" if dtype == torch.float32 else "tf32"
    _prepare_tuned[(layout.chunks, x.heads)](
        *x, p, z, *operands, layout.table, layout.cu, *x.head_counts,
        **x.widths, SHARED=x.shared, PRECISION=precision, C=CHUNK,
    )  # fmt: skip
    return p, z, operands
