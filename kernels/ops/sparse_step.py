"""One query of sparse attention over a cache: the public function, its definition and PyTorch's form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import Operation, always, only_when_named
from kernels.ops.sparse_attention.reference import sparse_attention_reference

# The definition: a mask over all rows of the cache.


def sparse_step_reference(
    q: Tensor, keys: Tensor, values: Tensor, indices: Tensor, *, scale: float | None = None
) -> Tensor:
    """Compute `kernels.sparse_step` by `sparse_attention` of one query.

    q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], indices integer [B, k] -> [B, H, V] in q's dtype.
    """
    k, v = (x.transpose(1, 2).to(q.dtype) for x in (keys, values))
    return sparse_attention_reference(q[:, None], k, v, indices[:, None], scale=scale)[:, 0]


# PyTorch's attention over copies of the selected rows.


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


# The public function and its backends.

__all__ = ["sparse_step"]

OPERATION = Operation("sparse_step")
OPERATION.register("torch", sparse_step_torch, suits=always)
OPERATION.register("reference", sparse_step_reference, suits=only_when_named)


def sparse_step(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    indices: Tensor,
    *,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute `sparse_attention` of the newest token over a cache, of which only the selected rows are read.

        o = Σ_s softmax_s(scale · q·k_s) · v_s     over the indices s of the sequence

    q        [B, H, K], any floating dtype; query head h uses KV head ⌊h·Hkv/H⌋
    keys     [B, Hkv, n, K], views of a cache in any floating dtype; rows are converted to q's dtype
    values   [B, Hkv, n, V], likewise
    indices  int32 or int64 [B, k], rows of the cache in any order, each at most once, at least one of a sequence;
             −1 where unused
    scale    None: K^(−1/2)
    backend  auto or torch (gathers the rows), reference (a mask over all rows)
    returns  o [B, H, V] in q's dtype (under autocast: autocast's)

    Softmax in at least fp32. Raises ValueError for shapes that do not fit, and for an unknown backend.
    Source: as `sparse_attention`.
    """
    _check(q, keys, values, indices)
    return OPERATION(q, keys, values, indices, scale=scale, backend=backend)


def _check(q: Tensor, keys: Tensor, values: Tensor, indices: Tensor) -> None:
    shapes = f"q {tuple(q.shape)}, keys {tuple(keys.shape)}, values {tuple(values.shape)}"
    if q.dim() != 3 or not keys.dim() == values.dim() == 4:
        raise ValueError(
            f"sparse_step needs q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], got {shapes}"
        )
    if keys.shape[:3] != values.shape[:3] or (q.shape[0], q.shape[2]) != (keys.shape[0], keys.shape[3]):
        raise ValueError(f"sparse_step: batch, KV heads, tokens or key width differ: {shapes}")
    if keys.shape[1] == 0 or q.shape[1] % keys.shape[1]:
        raise ValueError(f"sparse_step needs a number of query heads divisible by the KV heads, got {shapes}")
    fits = indices.dim() == 2 and indices.shape[0] == q.shape[0] and indices.shape[1] > 0
    if not fits or indices.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"sparse_step needs indices int32 or int64 [B, k] with B = {q.shape[0]}, k ≥ 1, "
            f"got {indices.dtype} {tuple(indices.shape)}"
        )
