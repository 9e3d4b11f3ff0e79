"""One query of sparse attention as PyTorch's attention over copies of the selected rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def sparse_step_torch(
    q: Tensor, keys: Tensor, values: Tensor, indices: Tensor, *, scale: float | None = None
) -> Tensor:
    """Compute `kernels.sparse_step`; the query heads of a KV head stand where attention has its queries.

    q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], indices integer [B, k] -> [B, H, V] in q's dtype.
    """
    rows, used = indices.clamp_min(0), (indices >= 0)[:, None, None]
    k, v = (_gather(x, rows).to(q.dtype) for x in (keys, values))
    groups = q.unflatten(1, (keys.shape[1], -1))
    return F.scaled_dot_product_attention(groups, k, v, attn_mask=used, scale=scale).flatten(1, 2)


def _gather(x: Tensor, rows: Tensor) -> Tensor:
    """Rows [B, k] of x [B, H, n, D] -> [B, H, k, D]."""
    if len(x) == 1:  # a third faster
        return x.index_select(2, rows[0])
    batch = torch.arange(len(x), device=x.device)[:, None]
    return x.transpose(1, 2)[batch, rows].transpose(1, 2)
