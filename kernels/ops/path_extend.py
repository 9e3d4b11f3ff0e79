"""Several tokens of PaTH attention over a cache: the public function, its definition and PyTorch's form."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Operation, always, only_when_named, without_autocast
from kernels.ops.path_attention.torch_form import Layout, Past, blocks_of, extend
from kernels.ops.path_step import check_path_step, path_step_reference

# The definition: the tokens one after the other.


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


# In blocks: the cached keys enter as what earlier blocks carried.


def path_extend_torch(
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
    """Compute `kernels.path_extend` blockwise, as `path_attention` does.

    q [B, T, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], w [B, T, Hkv, K], beta [B, T, Hkv], g [B, T, H],
    forgotten [B, H, n] or None -> [B, T, H, V] in q's dtype.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    tokens, cached = q.shape[1], keys.shape[2]
    layout = Layout(q.shape[0], tokens, keys.shape[1])
    with without_autocast(q):
        wide = torch.promote_types(torch.promote_types(q.dtype, keys.dtype), torch.float32)
        new = (x[:, :, cached - tokens :].transpose(1, 2) for x in (keys, values))
        blocks = blocks_of(layout, q.to(wide), *new, w, beta, g, scale)
        old = (None if x is None else x[:, :, : cached - tokens].to(wide) for x in (keys, values, forgotten))
        out, _, carried = extend(*blocks, _past(layout, *old))
        keys.copy_(carried.keys[:, :cached].unflatten(0, (layout.batch, -1)))
        if forgotten is not None:
            forgotten.copy_(carried.sums[:, :, :cached].unflatten(0, (layout.batch, -1)).flatten(1, 2))
    return layout.whole(out).to(q.dtype)


def _past(layout: Layout, keys: Tensor, values: Tensor, forgotten: Tensor | None) -> Past:
    """The cached rows by KV head: [G, n, K], [G, n, V] and [G, Q, n]."""
    sums = None if forgotten is None else forgotten.unflatten(1, (layout.kv_heads, -1)).flatten(0, 1)
    return Past(keys.flatten(0, 1), values.flatten(0, 1), sums)


# The public function and its backends.

__all__ = ["path_extend"]

OPERATION = Operation("path_extend")
OPERATION.register("torch", path_extend_torch, suits=always)
OPERATION.register("reference", path_extend_reference, suits=only_when_named)


def path_extend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    forgotten: Tensor | None = None,
    *,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute `path_attention` of the newest T of n tokens over a cache of keys and values, turning the keys in place.

        k_j ← H_{n−1}·…·H_s·k_j,  f_j ← f_j + g_s + … + g_{n−1},     s = max(j + 1, n − T)

    A prompt is read by one call on an empty cache, or by one for each chunk; `path_step` is T = 1 and does less.

    q          [B, T, H, K], any floating dtype; query head h uses KV head ⌊h·Hkv/H⌋
    keys       [B, Hkv, n, K], written in place. The last T rows are the newest tokens', as yet unturned. In at least
               fp32 where they are turned
    values     [B, Hkv, n, V], only read
    w, beta    [B, T, Hkv, K], [B, T, Hkv], of the newest tokens; None, both: keys are not turned (FoX)
    g          [B, T, H], their log forget gates ≤ 0; None, with `forgotten`: nothing is forgotten (PaTH)
    forgotten  [B, H, n], Σ g since every token, in at least fp32, written in place; 0 in the last T rows
    scale      None: K^(−1/2)
    backend    auto or torch (in blocks of tokens, memory linear in n), reference (token by token)
    returns    o [B, T, H, V] in q's dtype, the last T rows of `path_attention`

    All arithmetic in at least fp32. Passes no gradient: raises ValueError where one is asked for, for shapes and
    dtypes that do not fit, and for a backend that is unknown.
    Source: Yang et al. 2025, PaTH Attention (arXiv:2505.16381), section 3.3; Lin et al. 2025 (arXiv:2503.02130).
    """
    _check(q, keys, values, w, beta, g, forgotten)
    return OPERATION(q, keys, values, w, beta, g, forgotten, scale=scale, backend=backend)


def _check(q: Tensor, keys: Tensor, values: Tensor, w, beta, g, forgotten) -> None:
    if q.dim() != 4 or not 1 <= q.shape[1] <= keys.shape[2]:
        raise ValueError(
            f"path_extend needs q [B, T, H, K] with T from 1 to the cache's n tokens, got {tuple(q.shape)} and "
            f"keys {tuple(keys.shape)}"
        )
    for name, x in (("w", w), ("beta", beta), ("g", g)):
        if x is not None and x.shape[:2] != q.shape[:2]:
            raise ValueError(
                f"path_extend needs {name} with [B, T] = {tuple(q.shape[:2])}, got {tuple(x.shape)}"
            )
    newest = (None if x is None else x[:, -1] for x in (w, beta, g))
    check_path_step(q[:, -1], keys, values, *newest, forgotten, name="path_extend")
