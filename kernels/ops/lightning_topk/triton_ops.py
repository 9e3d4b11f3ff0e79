"""Lightning top-k without a matrix of scores: every key is scored once, and each query keeps the best so far.

Scores become ranks, 31 bits in the scores' order with ties where the definition has them. A program has BQ queries
of one sequence, with all their index heads as rows of one product, and goes over the keys that they see from the
latest to the earliest. Keys that rank above a query's floor go into its candidate buffer; a full buffer is pruned to
its best k_max, the lowest of which is the new floor. With random scores about k·ln(T/k) keys reach the buffer, which is
then pruned about ln(T/k) times. At the end, when the variance of the scores is known, an adaptive k says how
many of the buffer's best are written down. As keys come from the latest, the buffer is in the result's order, and of
equal ranks it is the later that stay.

Nothing is saved: no gradient passes. Candidate buffers are the memory: 8 bytes times about 2·k_max a query, for the
queries that are at work at one time.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kernels.ops.lightning_topk.adaptive import AdaptiveK
from kernels.ops.lightning_topk.triton_select import select_tuned
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table
from kernels.triton_common.device import padded

MOST_ROWS = 128
PROGRAMS = 528
"""The most programs, each with its candidate buffers: four for each multiprocessor of an H200."""
ROOM = 128
"""The least room of a buffer beyond k_max, in candidates: as many as the largest BS."""
PRUNED = 2048
"""Candidates that a program prunes at a time, in several rows if one has fewer."""


def queries_a_program(heads: int) -> int:
    """Return the number of queries, at most 16, whose index heads together fill a tile of MOST_ROWS rows."""
    return min(16, MOST_ROWS // triton.next_power_of_2(heads))


def index_sizes(q_idx: Tensor) -> dict[str, int]:
    """Return the constants that the indexer's kernels share for q_idx [B, T, HI, DI]: the sizes of their tiles.

    HI, DI: index heads and their width. BQ: queries of a tile, whose rows are (query, index head); BH: HI, rounded up
    to a power of two; BD: DI, likewise (`padded`).
    """
    heads, width = q_idx.shape[2:]
    return {
        "HI": heads,
        "DI": width,
        "BQ": queries_a_program(heads),
        "BH": triton.next_power_of_2(heads),
        "BD": padded(width),
    }


def alike(q_idx: Tensor, k_idx: Tensor) -> tuple[Tensor, Tensor]:
    """Return q_idx [B, Tq, HI, DI] and k_idx [B, Tk, DI], contiguous and in one dtype: theirs if it is one, else fp32.

    Products of 16-bit numbers are exact in fp32, so that casting them changes no score.
    """
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
    """Compute `kernels.lightning_topk` on a GPU.

    q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI], k [B, Tq] or a rule -> int32 [B, Tq, k_max].
    """
    q_idx, k_idx = alike(q_idx.detach(), k_idx.detach())
    counts, rule = (k.contiguous(), None) if isinstance(k, Tensor) else (None, k)
    settings = (rule.base, rule.least, rule.most, rule.beta, rule.reference) if rule else (1, 1, 1, 1.0, 1.0)
    sizes = index_sizes(q_idx)
    table = chunk_table(q_idx, cu_seqlens, sizes["BQ"])
    programs, size = min(len(table), PROGRAMS), _capacity(k_max, k_idx.shape[1])
    buffer, scratch = (
        torch.empty(programs, sizes["BQ"], 2, n, dtype=torch.int32, device=q_idx.device) for n in (size, 1)
    )
    indices = torch.empty(*q_idx.shape[:2], k_max, dtype=torch.int32, device=q_idx.device)
    select_tuned[(programs,)](
        q_idx, k_idx, w_idx.detach().contiguous(), bias.detach().contiguous(), counts, indices, buffer, scratch, table,
        boundaries(q_idx, cu_seqlens), boundaries(k_idx, cu_seqlens), len(table), q_idx.shape[-1] ** -0.5, *settings,
        K_MAX=k_max, RULE=rule.rule if rule else "given", PACKED=cu_seqlens is not None, SCORES=scores,
        CAPACITY=size, ROWS=max(1, min(sizes["BQ"], PRUNED // size)), **sizes,
    )  # fmt: skip
    return indices


def _capacity(k_max: int, keys: int) -> int:
    """Candidates that a buffer holds: all keys if there are few, else k_max and as many again."""
    return triton.next_power_of_2(max(k_max, min(k_max + max(k_max, 2 * ROOM), keys + ROOM)))
