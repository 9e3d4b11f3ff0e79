"""The gradients of values, β and the intra-chunk products: the first step of triton_backward.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_arguments import Inputs, ValueGradients
from kernels.ops.delta_rule.triton_heads import empty_for_heads
from kernels.ops.delta_rule.triton_tiles import CHUNK, from_token
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import (
    load_head_rows,
    load_head_scalars,
    store_head_rows,
    store_head_scalars,
)
from kernels.triton_common.tuning import Tuned


@triton.jit
def _values(
    beta, z, errors, d_o, d_writes, d_v, d_beta, d_p, d_a, table, cu, scale, H,
    V: tl.constexpr, C: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """dV, dβ, dP and dA of one chunk and head.

    inputs     beta [tokens, H]; z Z [tokens, H, C]; errors E, d_o dO, d_writes dF [tokens, H, V]
    outputs    d_v [tokens, H, V]; d_beta [tokens, H]; d_p, d_a [tokens, H, C]
    layout     table, cu
    sizes      scale; H heads
    constants  V width; C tokens a chunk; BV columns a tile
    """
    head = tl.program_id(1)
    sequence, _, end, first = chunk_bounds(table, cu, tl.program_id(0), C)
    if sequence >= 0:
        token = tl.arange(0, C)
        last = tl.minimum(end - first, C).to(tl.int32)
        beta, z = from_token(beta, first, H, 1), from_token(z, first, H, C)
        errors, d_o = from_token(errors, first, H, V), from_token(d_o, first, H, V)
        d_writes, d_v = from_token(d_writes, first, H, V), from_token(d_v, first, H, V)
        d_p, d_a = from_token(d_p, first, H, C), from_token(d_a, first, H, C)
        d_beta = from_token(d_beta, first, H, 1)
        strength = load_head_scalars(beta, token, last, head, H)[:, None]
        triangle = tl.trans(load_head_rows(z, token, last, head, H, token, C))
        products, overlap = tl.zeros((C, C), tl.float32), tl.zeros((C, C), tl.float32)
        by_beta = tl.zeros((C,), tl.float32)
        for start in range(0, V, BV):
            value = start + tl.arange(0, BV)
            # dF′ = dF − Zᵀ·Diag(β)·dF
            d_write = load_head_rows(d_writes, token, last, head, H, value, V).to(tl.float32)
            d_error = (d_write * strength).to(z.dtype.element_ty)
            d_write -= tl.dot(triangle, d_error, input_precision="ieee")
            # dβ = Σ_v dF′⊙E
            error = load_head_rows(errors, token, last, head, H, value, V).to(tl.float32)
            by_beta += tl.sum(d_write * error, axis=1)
            # dV = Diag(β)·dF′
            d_value = d_write * strength
            store_head_rows(d_v, d_value, token, last, head, H, value, V)
            # dP = scale·dO·Fᵀ,  dA = −dV·Fᵀ,  F = Diag(β)·E
            write = tl.trans((error * strength).to(z.dtype.element_ty))
            d_out = load_head_rows(d_o, token, last, head, H, value, V).to(z.dtype.element_ty)
            products += tl.dot(d_out, write, input_precision="ieee")
            overlap -= tl.dot(d_value.to(z.dtype.element_ty), write, input_precision="ieee")
        i = tl.arange(0, C)[:, None]
        j = tl.arange(0, C)[None]
        products = tl.where(i >= j, products * scale, 0.0)
        store_head_rows(d_p, products, token, last, head, H, tl.arange(0, C), C)
        overlap = tl.where(i > j, overlap, 0.0)
        store_head_rows(d_a, overlap, token, last, head, H, tl.arange(0, C), C)
        store_head_scalars(d_beta, by_beta, token, last, head, H)


_values_tuned = Tuned(
    _values,
    [
        triton.Config({"BV": width}, num_warps=warps, num_stages=stages)
        for width, warps, stages in ((64, 4, 2), (32, 4, 3), (128, 8, 1), (64, 8, 2))
    ],
    ["V"],
)


def values_backward(
    x: Inputs, z: Tensor, errors: Tensor, d_o: Tensor, d_writes: Tensor, scale: float, layout: ChunkLayout
) -> ValueGradients:
    """Compute dV [B, T, H, V] of every head, dβ [B, T, H], dP and dA [B·T, H, C], C = 64.

    z Z [B·T, H, C]; errors E [B·T, H, V]; d_o dO [B, T, H, V]; d_writes dF [B·T, H, V].
    """
    found = ValueGradients(
        empty_for_heads(x.v, x.heads), torch.empty_like(x.beta), torch.empty_like(z), torch.empty_like(z)
    )
    _values_tuned[(layout.chunks, x.heads)](
        x.beta, z, errors, d_o, d_writes, *found, layout.table, layout.cu, scale, x.heads, V=x.widths["V"], C=CHUNK
    )  # fmt: skip
    return found
