"""One token of PaTH attention as its definition has it: the cached tokens one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.ops.path_attention.reference import householder


def path_step_reference(
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
    """Compute `kernels.path_step`: turn keys and add to forgotten, token by token, then attend; at least fp32.

    q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], w [B, Hkv, K], beta [B, Hkv], g [B, H], forgotten [B, H, n]
    or None -> [B, H, V] in q's dtype; keys and forgotten are written in place.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(torch.promote_types(q.dtype, keys.dtype), torch.float32)
    group, newest = q.shape[1] // keys.shape[1], keys.shape[2] - 1
    logits = []
    with without_autocast(q):
        for j in range(newest + 1):
            if j < newest and w is not None:
                keys[:, :, j] = householder(keys[:, :, j], w.to(wide), beta.to(wide))
            if j < newest and g is not None:
                forgotten[:, :, j] += g
            key = keys[:, :, j].to(wide).repeat_interleave(group, dim=1)
            logit = scale * (key * q).sum(-1)
            logits.append(logit if forgotten is None else logit + forgotten[:, :, j])
        weights = torch.stack(logits, -1).softmax(-1)
        o = torch.einsum("bhj,bhjv->bhv", weights, values.to(weights.dtype).repeat_interleave(group, dim=1))
    return o.to(q.dtype)
