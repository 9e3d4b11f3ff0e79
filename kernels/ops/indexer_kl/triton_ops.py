"""The indexer's loss and its gradients without a matrix of scores.

    attention's sums   log Σ exp of every query and head, as in attention's forward
    by query           p from those sums, one head after another; the indexer's own log Σ exp by a first pass over
                       its scores; then loss, d_q, d_w and, a part a program, d_bias and d_τ
    by key             p and the scores again for d_k: a program owns a block of keys, and goes over the queries
                       from its first key on or, given indices, over those whose lists name one of the block

The target p is needed for the value and for every gradient, so that all are made in the forward pass, as in the
torch form; the backward multiplies them by the loss's own gradient. Nothing is added atomically. A program has a block
of queries and goes over tiles of keys, of which it masks those that indices leave out; where lists are short beside the
sequence (`masks`), a query is a program that gathers its list. Index queries and keys in fp16 become fp32: derivatives
with respect to a pair's score are below fp16's range.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from kernels.gradients import first_order
from kernels.ops.indexer_kl.triton_keys import keys_tuned, scale_by
from kernels.ops.indexer_kl.triton_queries import attention_sums_tuned, queries_tuned
from kernels.ops.lightning_topk.triton_ops import MOST_ROWS, alike, index_sizes, queries_a_program
from kernels.ops.sparse_attention.inverse import BLOCK, selectors
from kernels.ops.sparse_attention.triton_selection import Selection, masks, selection_of
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import padded, sum_rows

SPLITS = 4
"""Programs that share a block of keys: one alone goes over all queries for the first keys, long after others end."""
PARTS = 32
"""Rows to which the parts of all programs are added first; then these rows are added."""


class _Call(NamedTuple):
    """The arguments of one call, contiguous, as all its kernels read them."""

    q: Tensor
    k: Tensor
    indexer: tuple[Tensor, ...]  # q_idx, k_idx, w_idx, bias, tau
    indices: Tensor | None
    selection: Selection | None
    scale: float
    scores: str
    cu_seqlens: Tensor | None

    @property
    def keys(self) -> str:
        """Which keys a query sees: KEYS of the kernels."""
        return (
            "all"
            if self.indices is None and self.selection is None
            else "list"
            if self.selection is None
            else "masked"
        )

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
    def forward(
        ctx, q_idx, k_idx, w_idx, bias, tau, q, k, indices, selection, lse, scale, scores, cu_seqlens, learns
    ):
        indexer = (*alike(*_fp16_to_fp32(q_idx, k_idx)), w_idx.contiguous(), bias.contiguous(), tau)
        indices = None if indices is None else indices.contiguous()
        call = _Call(q.contiguous(), k.contiguous(), indexer, indices, selection, scale, scores, cu_seqlens)
        loss, found = _loss_and_gradients(call, lse, learns)
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
        return *scaled, *(None,) * 9


def _fp16_to_fp32(*tensors: Tensor) -> list[Tensor]:
    return [x.to(torch.float32) if x.dtype == torch.float16 else x for x in tensors]


def _tiles(call: _Call, queries: int) -> dict[str, int]:
    """Sizes of the kernels with so many queries a tile, by their names in triton_queries.py.

    Where that is one, its heads alone have to fill a product's rows.
    """
    q, k, q_idx = call.q, call.k, call.indexer[0]
    group, width = q.shape[2] // k.shape[2], q.shape[3]
    sizes = index_sizes(q_idx)
    sizes["BQ"] = queries
    if queries == 1:
        sizes["BH"] = max(16, sizes["BH"])
    fewest = triton.cdiv(16, sizes["BQ"])
    heads = min(triton.next_power_of_2(group), max(1, MOST_ROWS // sizes["BQ"]))
    return {
        **sizes,
        "G": group,
        "HKV": k.shape[2],
        "K": width,
        "BK": padded(width),
        "BG": max(fewest, heads),
        "KEYS": call.keys,
    }


def _loss_and_gradients(call: _Call, lse: Tensor | None, learns: bool) -> tuple[Tensor, list[Tensor]]:
    """The loss [] and, in fp32, its gradients for the five tensors of the indexer; undefined unless `learns`.

    lse [B, T, H]: attention's log Σ exp, where it has been computed.
    """
    q, k, q_idx = call.q, call.k, call.indexer[0]
    w_idx, tau = call.indexer[2], call.indexer[4]
    sizes = _tiles(call, 1 if call.keys == "list" else queries_a_program(q_idx.shape[2]))
    cu, table = boundaries(q, call.cu_seqlens), chunk_table(q, call.cu_seqlens, sizes["BQ"])
    fp32 = {"dtype": torch.float32, "device": q.device}
    dq, dw = (torch.empty(x.shape if learns else 0, **fp32) for x in (q_idx, w_idx))
    if call.selection is not None:
        chosen, ends = call.selection.bits, call.selection.keys
    else:
        chosen, ends = call.indices, None
    lists = {"T": q.shape[1], "N": 0 if chosen is None else chosen.shape[2]}
    if lse is None:
        lse = torch.empty(q.shape[:3], **fp32)
        of_attention = {name: sizes[name] for name in ("G", "HKV", "K", "BQ", "BG", "BK", "KEYS")}
        heads = sizes["HKV"] * triton.cdiv(sizes["G"], sizes["BG"])
        attention_sums_tuned[(len(table), heads)](
            q, k, chosen, ends, lse, table, cu, call.scale, **lists, **of_attention
        )
    sums = _Sums(lse, *(torch.empty(q.shape[:2], **fp32) for _ in range(2)))
    parts = torch.zeros(triton.cdiv(len(table), PARTS) * PARTS, sizes["HI"] + 2, **fp32)
    queries_tuned[(len(table),)](
        q, k, *call.indexer, chosen, ends, *sums, parts, dq, dw, table, cu, call.scale, call.index_scale,
        **lists, **sizes, SEQUENCES=len(cu) - 1, LEARNS=learns, SCORES=call.scores,
    )  # fmt: skip
    total = sum_rows(
        sum_rows(parts.view(-1, PARTS * parts.shape[1]), torch.float32).view(PARTS, -1), torch.float32
    )
    dk = _key_gradient(call, sums) if learns else dq
    return total[0].clone(), [dq, dk, dw, total[2:].clone(), total[1].clone().view_as(tau)]


def _key_gradient(call: _Call, sums: _Sums) -> Tensor:
    """dk [B, T, DI] in fp32."""
    q, k, k_idx = call.q, call.k, call.indexer[1]
    blocks = triton.cdiv(q.shape[1], BLOCK)
    table, cu, lists, programs, words = None, None, (None, None, None), q.shape[0] * blocks, 0
    if call.selection is not None:
        lists, words = (call.selection.queries, None, call.selection.bits), call.selection.bits.shape[2]
    elif call.indices is not None:
        inverse = selectors(call.indices, q.shape[1])
        lists = inverse.first, inverse.query, inverse.bits
    else:
        table, cu = chunk_table(q, call.cu_seqlens, BLOCK), boundaries(q, call.cu_seqlens)
        programs = len(table)
    parts = torch.empty(SPLITS, *k_idx.shape, dtype=torch.float32, device=q.device)
    keys_tuned[(programs, SPLITS)](
        q, k, *call.indexer, *sums, parts, table, cu, *lists, call.scale, call.index_scale,
        T=q.shape[1], N=words, BLOCKS=blocks, TOKENS=q.shape[0] * q.shape[1], BS=BLOCK, SCORES=call.scores,
        **_tiles(call, _queries_of_keys(call.indexer[0])),
    )  # fmt: skip
    return sum_rows(parts, torch.float32)


def _queries_of_keys(q_idx: Tensor) -> int:
    """Queries of a tile of the kernel by key: their index heads fill a product's rows, fewer where heads are wide."""
    heads, width = q_idx.shape[2:]
    rows = 2 * MOST_ROWS if width <= 64 else MOST_ROWS
    return max(1, min(64, rows // triton.next_power_of_2(heads)))


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
    selection: Selection | None = None,
    lse: Tensor | None = None,
    scale: float | None = None,
    scores: str = "sigmoid",
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.indexer_kl` on a GPU; gradients only where autograd needs them.

    q [B, T, H, K], k [B, T, Hkv, K], q_idx [B, T, HI, DI], k_idx [B, T, DI], w_idx [B, T, HI], bias [HI], tau [],
    indices [B, T, n] or None -> [] in fp32, in nats. From an attention to the same keys may come the selection that
    indices make and lse [B, T, H], log Σ exp of every query and head.
    """
    indexer = q_idx, k_idx, w_idx, bias, tau
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in indexer)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if (
        selection is None
        and indices is not None
        and masks(q.shape[2], k.shape[2], k.shape[1], indices.shape[2])
    ):
        selection = selection_of(indices, k.shape[1])
    inputs = (*indexer, q.detach(), k.detach(), indices, selection, lse)
    return _IndexerKL.apply(*inputs, scale, scores, cu_seqlens, learns)
