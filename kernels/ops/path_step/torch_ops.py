"""One token of PaTH attention in plain PyTorch: the cache turned, the gate added, PyTorch's own attention."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.sdpa import sdpa


def path_step_torch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    forgotten: Tensor | None = None,
    *,
    scale: float | None = None,
) -> Tensor:
    """Compute `kernels.path_step` in three passes over the keys: their products with w, their turn, the attention.

    q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], w [B, Hkv, K], beta [B, Hkv], g [B, H], forgotten [B, H, n]
    or None -> [B, H, V] in q's dtype; keys and forgotten are written in place.
    """
    wide = torch.promote_types(torch.promote_types(q.dtype, keys.dtype), torch.float32)
    with without_autocast(q):
        if w is not None:
            past, w = keys[:, :, :-1], w.to(keys.dtype)
            along = beta[..., None].to(keys.dtype) * (past @ w[..., None])[..., 0]
            past.addcmul_(along[..., None], w[:, :, None], value=-1)
        if g is not None:
            forgotten[:, :, :-1] += g[..., None]
        o = sdpa(
            q[:, :, None].to(wide),
            keys.to(wide),
            values.to(wide),
            attn_mask=None if forgotten is None else forgotten[:, :, None].to(wide),
            scale=scale,
            enable_gqa=True,
        )
    return o[:, :, 0].to(q.dtype)
