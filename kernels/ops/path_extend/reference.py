"""Several tokens of PaTH attention over a cache as the definition has them: one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.path_step.reference import path_step_reference


def path_extend_reference(
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
    """Compute `kernels.path_extend`: `path_step` of every token over the cache as it ends with that token.

    q [B, T, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], w [B, T, Hkv, K], beta [B, T, Hkv], g [B, T, H],
    forgotten [B, H, n] or None -> [B, T, H, V] in q's dtype.
    """
    past, out = keys.shape[2] - q.shape[1], []
    for t in range(q.shape[1]):
        end = past + t + 1
        token = (None if x is None else x[:, t] for x in (w, beta, g))
        f = None if forgotten is None else forgotten[:, :, :end]
        out.append(path_step_reference(q[:, t], keys[:, :, :end], values[:, :, :end], *token, f, scale=scale))
    return torch.stack(out, 1)
