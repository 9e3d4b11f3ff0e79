"""The indexer's loss and its gradients without a matrix of scores.

    attention's sums   log Σ exp of every query and head, as in attention's forward
    by query           p from those sums, one head after another; the indexer's own log Σ exp by a first pass over
                       its scores; then loss, d_q, d_w and, a part a program, d_bias and d_τ
    by key             p and the scores again for d_k: a program owns a block of keys, and goes over the queries
                       from its first key on or, given indices, over those whose lists name one of the block

The target p is needed for the value and for every gradient, so that all are made in the forward pass, as in the
torch form; the backward multiplies them by the loss's own gradient. Nothing is added atomically. With indices a
query is a program that gathers its list; without them a program has a block of queries. Index queries and keys in
fp16 become fp32: derivatives with respect to a pair's score are below fp16's range.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from kernels.gradients import first_order
from kernels.ops.indexer_kl.triton_keys import keys_tuned, scale_by
from kernels.ops.indexer_kl.triton_queries import attention_sums_tuned, queries_tuned
from kernels.ops.lightning_topk.triton_ops import MOST_ROWS, alike, index_sizes
from kernels.ops.sparse_attention.inverse import BLOCK, selectors
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import padded, sum_rows

PARTS = 32
"""Rows to which the parts of all programs are added first; then these rows are added."""


class _Call(NamedTuple):
    """The arguments of one call, contiguous, as all its kernels read them."""

    q: Tensor
    k: Tensor
    indexer: tuple[Tensor, ...]  # q_idx, k_idx, w_idx, bias, tau
    indices: Tensor | None
    scale: float
    scores: str
    cu_seqlens: Tensor | None

    @property
    def index_scale(self) -> float:
        """1/√d_I."""
        return self.indexer[0].shape[-1] ** -0.5


class _Sums(NamedTuple):
    """Results of the kernels by query that the kernel by key reads, fp32.

    lse [B, T, H]: log Σ exp of attention; index_lse [B, T]: of τ·I; weights [B, T]: weight_t
    """

    lse: Tensor
    index_lse: Tensor
    weights: Tensor


class _IndexerKL(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q_idx, k_idx, w_idx, bias, tau, q, k, indices, scale, scores, cu_seqlens, learns):
        indexer = (*alike(*_fp16_to_fp32(q_idx, k_idx)), w_idx.contiguous(), bias.contiguous(), tau)
        indices = None if indices is None else indices.contiguous()
        call = _Call(q.contiguous(), k.contiguous(), indexer, indices, scale, scores, cu_seqlens)
        loss, found = _loss_and_gradients(call, learns)
        ctx.save_for_backward(*found)
        ctx.dtypes = [x.dtype for x in (q_idx, k_idx, w_idx, bias, tau)]
        return loss

    @staticmethod
    @first_order
    def backward(ctx, grad):
        scaled = []
        for x, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            out = torch.empty_like(x, dtype=dtype)
            scale_by[(triton.cdiv(x.numel(), 1024),)](x, grad, out, x.numel(), BLOCK=1024)
            scaled.append(out)
        return *scaled, *(None,) * 7


def _fp16_to_fp32(*tensors: Tensor) -> list[Tensor]:
    return [x.to(torch.float32) if x.dtype == torch.float16 else x for x in tensors]


def _tiles(q: Tensor, k: Tensor, q_idx: Tensor, selected: bool) -> dict[str, int]:
    """Sizes of the kernels, by their names in triton_queries.py.

    With lists a program has one query, whose heads alone have to fill a product's rows.
    """
    group, width = q.shape[2] // k.shape[2], q.shape[3]
    sizes = index_sizes(q_idx)
    if selected:
        sizes["BQ"], sizes["BH"] = 1, max(16, sizes["BH"])
    fewest = triton.cdiv(16, sizes["BQ"])
    heads = min(triton.next_power_of_2(group), MOST_ROWS // sizes["BQ"])
    return {
        **sizes,
        "G": group,
        "HKV": k.shape[2],
        "K": width,
        "BK": padded(width),
        "BG": max(fewest, heads),
        "SELECTED": selected,
    }


def _loss_and_gradients(call: _Call, learns: bool) -> tuple[Tensor, list[Tensor]]:
    """The loss [] and, in fp32, its gradients for the five tensors of the indexer; undefined unless `learns`."""
    q, k, indices = call.q, call.k, call.indices
    q_idx, k_idx, w_idx, _, tau = call.indexer
    sizes = _tiles(q, k, q_idx, indices is not None)
    cu, table = boundaries(q, call.cu_seqlens), chunk_table(q, call.cu_seqlens, sizes["BQ"])
    fp32 = {"dtype": torch.float32, "device": q.device}
    sums = _Sums(*(torch.empty(shape, **fp32) for shape in (q.shape[:3], *[q.shape[:2]] * 2)))
    dq, dk, dw = (torch.empty(x.shape if learns else 0, **fp32) for x in (q_idx, k_idx, w_idx))
    lists = {"T": q.shape[1], "N": 0 if indices is None else indices.shape[2]}
    of_attention = {name: sizes[name] for name in ("G", "HKV", "K", "BQ", "BG", "BK", "SELECTED")}
    heads = sizes["HKV"] * triton.cdiv(sizes["G"], sizes["BG"])
    attention_sums_tuned[(len(table), heads)](
        q, k, indices, sums.lse, table, cu, call.scale, **lists, **of_attention
    )
    parts = torch.zeros(triton.cdiv(len(table), PARTS) * PARTS, sizes["HI"] + 2, **fp32)
    queries_tuned[(len(table),)](
        q, k, *call.indexer, indices, *sums, parts, dq, dw, table, cu, call.scale, call.index_scale,
        **lists, **sizes, SEQUENCES=len(cu) - 1, LEARNS=learns, SCORES=call.scores,
    )  # fmt: skip
    total = sum_rows(
        sum_rows(parts.view(-1, PARTS * parts.shape[1]), torch.float32).view(PARTS, -1), torch.float32
    )
    if learns:
        _key_gradient(call, sums, dk)
    return total[0].clone(), [dq, dk, dw, total[2:].clone(), total[1].clone().view_as(tau)]


def _key_gradient(call: _Call, sums: _Sums, dk: Tensor) -> None:
    """Fill dk [B, T, DI]."""
    q, k, indices = call.q, call.k, call.indices
    sizes = _tiles(q, k, call.indexer[0], selected=False)
    sizes["SELECTED"] = indices is not None
    blocks = triton.cdiv(q.shape[1], BLOCK)
    if indices is None:
        table, cu = chunk_table(q, call.cu_seqlens, BLOCK), boundaries(q, call.cu_seqlens)
        lists, programs = (None, None, None), len(table)
    else:
        inverse = selectors(indices, q.shape[1])
        table, cu, lists = None, None, (inverse.first, inverse.query, inverse.bits)
        programs = q.shape[0] * blocks
    keys_tuned[(programs,)](
        q, k, *call.indexer, *sums, dk, table, cu, *lists, call.scale, call.index_scale,
        T=q.shape[1], BLOCKS=blocks, BS=BLOCK, SCORES=call.scores, **sizes,
    )  # fmt: skip


def indexer_kl_triton(
    q: Tensor,
    k: Tensor,
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    tau: Tensor,
    *,
    indices: Tensor | None = None,
    scale: float | None = None,
    scores: str = "sigmoid",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.indexer_kl` on a GPU; gradients only where autograd needs them.

    q [B, T, H, K], k [B, T, Hkv, K], q_idx [B, T, HI, DI], k_idx [B, T, DI], w_idx [B, T, HI], bias [HI], tau [],
    indices [B, T, n] or None -> [] in fp32, in nats.
    """
    indexer = q_idx, k_idx, w_idx, bias, tau
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in indexer)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _IndexerKL.apply(*indexer, q.detach(), k.detach(), indices, scale, scores, cu_seqlens, learns)
