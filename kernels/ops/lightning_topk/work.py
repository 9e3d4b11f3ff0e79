"""Operations and bytes of the indexer's selection."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(
    q_idx: Tensor, k_idx: Tensor, w_idx: Tensor, bias: Tensor, *, k, k_max: int | None = None, **_options
) -> list[Work]:
    """Operations and bytes of a call: the scores of the pairs that are visible in a batch, once; no backward.

    Writes to candidate buffers are not counted. Packed sequences have fewer pairs than this.

    q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI]; k as in `kernels.lightning_topk`.
    """
    batch, queries, heads, width = q_idx.shape
    keys = k_idx.shape[1]
    if k_max is None:
        k_max = k if isinstance(k, int) else k.widest
    pairs = batch * (queries * keys - queries * (queries - 1) // 2)
    moved = nbytes(q_idx, k_idx, w_idx, bias) + 4 * batch * queries * k_max
    return [Work("lightning_topk", "forward", 2 * pairs * heads * width, moved)]
