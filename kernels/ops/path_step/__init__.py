"""One token of PaTH attention over a cache: the public function and its backends."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.ops.path_step.reference import path_step_reference
from kernels.ops.path_step.torch_ops import path_step_torch
from kernels.triton_common import lazily, refusal

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
        return f"needs a last axis whose numbers are neighbours in memory, not so in {', '.join(split)}"
    return reason


OPERATION = Operation("path_step")
OPERATION.register(
    "triton",
    lazily("kernels.ops.path_step.triton_ops", "path_step_triton"),
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
        raise ValueError(f"{name} needs both w and beta, both g and forgotten, or None for both")
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
            raise ValueError(f"{name} changes {argument} at every token: at least float32, not {x.dtype}")
    inputs = (q, keys, values, w, beta, g, forgotten)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        raise ValueError(
            f"{name} changes its cache in place and has no gradient: call it under torch.no_grad()"
        )
