"""One query of sparse attention by its definition: a mask over all rows of the cache."""

from __future__ import annotations

from torch import Tensor

from kernels.ops.sparse_attention.reference import sparse_attention_reference


def sparse_step_reference(
    q: Tensor, keys: Tensor, values: Tensor, indices: Tensor, *, scale: float | None = None
) -> Tensor:
    """Compute `kernels.sparse_step` by `sparse_attention` of one query.

    q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], indices integer [B, k] -> [B, H, V] in q's dtype.
    """
    k, v = (x.transpose(1, 2).to(q.dtype) for x in (keys, values))
    return sparse_attention_reference(q[:, None], k, v, indices[:, None], scale=scale)[:, 0]
