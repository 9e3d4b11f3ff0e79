"""One token of PaTH attention over a cache: the public function, its definition and PyTorch's form."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named, without_autocast
from kernels.ops.attention import sdpa
from kernels.ops.path_attention.reference import householder
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

# The definition: the cached tokens one after the other.


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


# Plain PyTorch: the cache turned, the gate added, PyTorch's own attention.


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


# The public function and its backends.

__all__ = ["path_step"]

MAX_GROUP = 64
"""Query heads a KV head that a program of the kernels holds: it turns the keys once, for all queries that read them."""


def _refuses(q, keys, values, w, beta, g=None, forgotten=None, **_options) -> str | None:
    reason = refusal(
        q, keys, values, w, beta, g, forgotten, widths=(q.shape[-1], values.shape[-1])
    )  # fmt: skip
    group = q.shape[1] // keys.shape[1]
    if reason is None and group > MAX_GROUP:
        return f"needs at most {MAX_GROUP} query heads a KV head, got {group}"
    caches = {"keys": keys, "values": values, "forgotten": forgotten}
    split = [name for name, x in caches.items() if x is not None and x.shape[-1] > 1 and x.stride(-1) != 1]
    if reason is None and split:
        return f"needs a last axis that is contiguous in memory, which it is not in {', '.join(split)}"
    return reason


OPERATION = Operation("path_step")
OPERATION.register(
    "triton",
    lazily("kernels.ops.path_step_triton", "path_step_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", path_step_torch, suits=always)
OPERATION.register("reference", path_step_reference, suits=only_when_named)


def path_step(
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
    """Compute `path_attention` of the newest of n tokens over a cache of keys and values, turning the keys in place.

        k_j ← H·k_j,  f_j ← f_j + g    for j = 0 … n−2, all tokens but the newest; H = I − β·w·wᵀ
        o = Σ_j softmax_j(scale · k_jᵀ·q + f_j) · v_j

    q          [B, H, K], any floating dtype; query head h uses KV head ⌊h·Hkv/H⌋
    keys       [B, Hkv, n, K], written in place. Row n−1 is the newest token's; it, and the storage around the rows
               where they are a view, stay unchanged. In at least fp32 where they are turned, because
               rounding would add up over tokens
    values     [B, Hkv, n, V], only read
    w, beta    [B, Hkv, K], [B, Hkv], of the newest token; None, both: keys are not turned (FoX)
    g          [B, H], the newest token's log forget gate ≤ 0; None, with `forgotten`: nothing is forgotten (PaTH)
    forgotten  [B, H, n], Σ g since every token, in at least fp32, written in place; row n−1 is only read: 0
    scale      None: K^(−1/2)
    backend    auto, triton (what auto takes on a GPU: one pass over the cache, at most 64 query heads a KV head),
               torch (a pass for each of the three), reference (token by token)
    returns    o [B, H, V] in q's dtype

    Decoding with it gives the rows of `path_attention`: append k and v, then call. All arithmetic in at least fp32.
    Passes no gradient: raises ValueError where one is asked for, and for shapes and dtypes that do not fit, and for a
    backend that is unknown or cannot serve the call.
    Source: Yang et al. 2025, PaTH Attention (arXiv:2505.16381), section 3.3; Lin et al. 2025 (arXiv:2503.02130).
    """
    check_path_step(q, keys, values, w, beta, g, forgotten)
    return OPERATION(q, keys, values, w, beta, g, forgotten, scale=scale, backend=backend)


def check_path_step(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None,
    forgotten: Tensor | None,
    *,
    name: str = "path_step",
) -> None:
    """Raise ValueError if the arguments of `path_step` do not fit each other, or want a gradient.

    q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], w [B, Hkv, K], beta [B, Hkv], g [B, H], forgotten [B, H, n]
    or None. name: the operation that the message is of.
    """
    shapes = f"q {tuple(q.shape)}, keys {tuple(keys.shape)}, values {tuple(values.shape)}"
    if q.dim() != 3 or not keys.dim() == values.dim() == 4:
        raise ValueError(
            f"{name} needs q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], got {shapes}"
        )
    if keys.shape[:3] != values.shape[:3] or (q.shape[0], q.shape[2]) != (keys.shape[0], keys.shape[3]):
        raise ValueError(f"{name}: batch, KV heads, tokens or key width differ: {shapes}")
    if keys.shape[1] == 0 or q.shape[1] % keys.shape[1] or keys.shape[2] == 0:
        raise ValueError(
            f"{name} needs a token in the cache and a number of query heads divisible by the KV heads, "
            f"got {shapes}"
        )
    if (w is None) != (beta is None) or (g is None) != (forgotten is None):
        raise ValueError(f"{name} needs w and beta together, and g and forgotten together")
    for argument, x, meaning, wanted in (
        ("w", w, "[B, Hkv, K]", (*keys.shape[:2], keys.shape[3])),
        ("beta", beta, "[B, Hkv]", tuple(keys.shape[:2])),
        ("g", g, "[B, H]", tuple(q.shape[:2])),
        ("forgotten", forgotten, "[B, H, n]", (*q.shape[:2], keys.shape[2])),
    ):
        if x is not None and x.shape != wanted:
            raise ValueError(f"{name} needs {argument} {meaning} = {wanted}, got {tuple(x.shape)}")
    for argument, x in (("keys", None if w is None else keys), ("forgotten", forgotten)):
        if x is not None and torch.promote_types(x.dtype, torch.float32) != x.dtype:
            raise ValueError(
                f"{name} updates {argument} at every token and needs float32 or float64, got {x.dtype}"
            )
    inputs = (q, keys, values, w, beta, g, forgotten)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        raise ValueError(
            f"{name} changes its cache in place and has no gradient: call it under torch.no_grad()"
        )


# Operations and bytes, for a roofline.


def work(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    forgotten: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Operations and bytes of a call: the cache read once; keys and `forgotten` written once, but for the newest row.

    A key that is turned takes two products with w; a split softmax's partial sums are not counted.

    q [B, H, K], keys [B, Hkv, n, K], values [B, Hkv, n, V], w [B, Hkv, K], beta [B, Hkv], g [B, H], forgotten [B, H, n]
    or None.
    """
    (batch, heads, width), tokens = q.shape, keys.shape[2]
    turned = 0 if w is None else keys.shape[1] * (tokens - 1)
    flops = batch * (4 * turned * width + 2 * heads * tokens * (width + values.shape[3]))
    written = batch * turned * width * keys.element_size()
    written += 0 if forgotten is None else batch * heads * (tokens - 1) * forgotten.element_size()
    written += batch * heads * values.shape[3] * q.element_size()
    return [Work("path_step", "forward", flops, nbytes(q, keys, values, w, beta, g, forgotten) + written)]
