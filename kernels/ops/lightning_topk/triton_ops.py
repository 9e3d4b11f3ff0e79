"""Lightning top-k without a matrix of scores: each query's threshold is searched by scoring its keys again.

Scores become ranks, 31 bits in the scores' order with ties where the definition has them. A program has BQ queries
of one sequence with all their index heads as rows of one product, and goes over the keys it sees

    once           lowest and highest rank, and the variance for an adaptive k
    ~5 times       counts of keys against WAYS ranks between the bounds, which narrows them WAYS-fold, until the
                   k-th highest rank is known or exactly k keys are above one; once more with ReLU scores, whose
                   ranks are further apart
    once           from the latest key to the earliest: what is above is written down, with as many ties as are left

and a second kernel sorts what was written. Scoring again is what the memory costs: a product with d_I columns and
H^I exponentials (ReLU scores: none) a pair of tokens each time; equal tiles give equal bits, so that the passes agree.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kernels.launch.device import padded
from kernels.launch.packing import boundaries, chunk_table
from kernels.ops.lightning_topk.adaptive import AdaptiveK
from kernels.ops.lightning_topk.triton_select import select_tuned
from kernels.ops.lightning_topk.triton_sort import sort_entries

MOST_ROWS = 128
WAYS, ROUNDS = 16, 8
SORTED = 2048
"""Entries that a program sorts, in as many rows as that is, if a row is not longer."""


def queries_a_program(heads: int) -> int:
    """Queries whose index heads together fill a tile of rows."""
    return min(16, MOST_ROWS // triton.next_power_of_2(heads))


def index_sizes(q_idx: Tensor) -> dict[str, int]:
    """Sizes of the tile of rows (query, index head) that the indexer's kernels share."""
    heads, width = q_idx.shape[2:]
    return {
        "HI": heads,
        "DI": width,
        "BQ": queries_a_program(heads),
        "BH": triton.next_power_of_2(heads),
        "BD": padded(width),
    }


def alike(q_idx: Tensor, k_idx: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one dtype, in which products are exact in fp32, and contiguous."""
    if q_idx.dtype != k_idx.dtype:
        q_idx, k_idx = q_idx.to(torch.float32), k_idx.to(torch.float32)
    return q_idx.contiguous(), k_idx.contiguous()


def lightning_topk_triton(
    q_idx: Tensor,
    k_idx: Tensor,
    w_idx: Tensor,
    bias: Tensor,
    *,
    k: Tensor | AdaptiveK,
    k_max: int,
    scores: str,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """`kernels.lightning_topk` on a GPU; memory B·Tq·k_max for what is sorted, in all 12 bytes an entry."""
    q_idx, k_idx = alike(q_idx.detach(), k_idx.detach())
    counts, rule = (k.contiguous(), None) if isinstance(k, Tensor) else (None, k)
    settings = (rule.base, rule.least, rule.most, rule.beta, rule.reference) if rule else (1, 1, 1, 1.0, 1.0)
    sizes = index_sizes(q_idx)
    table = chunk_table(q_idx, cu_seqlens, sizes["BQ"])
    rows = q_idx.shape[0] * q_idx.shape[1]
    entries = torch.full((rows, k_max), -1, dtype=torch.int64, device=q_idx.device)
    select_tuned[(len(table),)](
        q_idx, k_idx, w_idx.detach().contiguous(), bias.detach().contiguous(), counts, entries, table,
        boundaries(q_idx, cu_seqlens), boundaries(k_idx, cu_seqlens), q_idx.shape[-1] ** -0.5, *settings,
        K_MAX=k_max, RULE=rule.rule if rule else "given", PACKED=cu_seqlens is not None,
        SCORES=scores, WAYS=WAYS, ROUNDS=ROUNDS, **sizes,
    )  # fmt: skip
    indices = torch.empty(*q_idx.shape[:2], k_max, dtype=torch.int32, device=q_idx.device)
    log = (k_max - 1).bit_length()
    each = max(1, min(32, SORTED >> log))
    warps = {"num_warps": 8} if log > 10 else {}
    sort_entries[(triton.cdiv(rows, each),)](entries, indices, rows, k_max, BR=each, LOG=log, **warps)
    return indices
