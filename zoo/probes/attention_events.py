"""Probe events of attention: its weights, its gates, and the tokens that a query may read.

Weights come from the public operations' definitions (`backend="reference"`), with one-hot values, so that the fused
kernels of the pass stay fused. They take the q and k of the pass, and are computed in at least fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from zoo.context import Context

BRANCHES = ("compressed", "selected", "window")


def attention_weights(attend: Callable[..., Tensor], q: Tensor, k: Tensor, *more: Any, **options) -> Tensor:
    """The weight of token s for token t, [B, H, T, T] in at least fp32.

    attend: an operation of `kernels` that is called as attend(q, k, v, *more, **options); q [B, T, H, K], k
    [B, T, Hkv, K]. Its values are replaced, so it needs none here.
    """
    q, k = _wide(q), _wide(k)
    with torch.autocast(q.device.type, enabled=False):
        return attend(q, k, one_hot_values(k), *more, backend="reference", **options).transpose(1, 2)


def one_hot_values(v: Tensor) -> Tensor:
    """One-hot values [B, T, Hkv, T], for token s the s-th unit vector, in place of v [B, T, Hkv, V].

    Attention is linear in its values, so with these an operation returns its weights, [B, T, H, T].
    """
    time = v.shape[1]
    eye = torch.eye(time, device=v.device, dtype=v.dtype)
    return eye[None, :, None].expand(v.shape[0], -1, v.shape[2], -1)


def visible_tokens(attend: Callable[..., Tensor], q: Tensor, k: Tensor, *more: Any, **options) -> Tensor:
    """Return whether query t may read token s, bool [B, H, T, T]: with equal scores such weights are above 0."""
    return attention_weights(attend, torch.zeros_like(q), k, *more, **options) > 0


def attention_values(
    attend: Callable[..., Tensor], q: Tensor, k: Tensor, *more: Any, **options
) -> dict[str, Tensor]:
    """The tensors of an "attention" event: the weights of attend(q, k, v, *more, **options), [B, H, T, T]."""
    return {"weights": attention_weights(attend, q, k, *more, **options)}


def record_sparse_attention(ctx: Context, q: Tensor, k: Tensor, indices: Tensor | None) -> None:
    """Record attention over the selected keys, these keys, and the dense attention they were chosen from.

    indices: [B, T, n] as `kernels.lightning_topk` returns them; None where attention is still dense.
    """
    packed = {"cu_seqlens": ctx.cu_seqlens}
    if indices is None:
        ctx.record("attention", lambda: attention_values(kernels.attention, q, k, **packed))
        return
    ctx.record("attention", lambda: attention_values(kernels.sparse_attention, q, k, indices, **packed))
    ctx.record(
        "selection",
        lambda: {
            "selected": visible_tokens(kernels.sparse_attention, q, k, indices, **packed),
            "dense": attention_weights(kernels.attention, q, k, **packed),
        },
    )


def record_gates(ctx: Context, x: Tensor, width: int, **gates: nn.Module | None) -> None:
    """Record gates of x [B, T, D] by name, [B, T, heads, width] each; those that are None are left out.

    A gate on values has as many heads as there are KV heads.
    """
    there = {name: gate for name, gate in gates.items() if gate is not None}
    if there:
        ctx.record(
            "gates", lambda: {name: gate(x).unflatten(-1, (-1, width)) for name, gate in there.items()}
        )


def record_branch_attention(
    ctx: Context, q: Tensor, q_rotated: Tensor, keys: tuple[Tensor, ...], gates: Tensor, sizes: dict[str, int]
) -> None:
    """Record gates, attention and selection of `kernels.nsa_attention`.

        w_ts = Σ_c g_tc·w^c_ts / Σ_s Σ_c g_tc·w^c_ts       c: compression, selection, window

    with a block's weight in the compression branch spread evenly over the block's tokens. That branch has no
    weights for a query before the first block's end; the other two then make up the row.

    q, q_rotated  [B, T, H, K]; keys: of the three branches, [B, M, Hkv, K] and twice [B, T, Hkv, K]
    gates         [B, T, H, 3]; sizes: block_size, stride, select_size, n_select, window
    """
    options = {**sizes, "cu_seqlens": ctx.cu_seqlens}

    def weights() -> Tensor:
        whole = branch_weights(q, q_rotated, keys, gates, options)
        return whole / whole.sum(-1, keepdim=True)

    def selected() -> Tensor:
        only = torch.zeros_like(gates)
        only[..., BRANCHES.index("selected")] = 1
        return branch_weights(q, torch.zeros_like(q_rotated), keys, only, options) > 0

    ctx.record("gates", lambda: dict(zip(BRANCHES, gates.detach().unbind(-1), strict=True)))
    ctx.record("attention", lambda: {"weights": weights()})
    ctx.record("selection", lambda: {"selected": selected()})


def branch_weights(
    q: Tensor, q_rotated: Tensor, keys: tuple[Tensor, ...], gates: Tensor, options: dict[str, Any]
) -> Tensor:
    """Σ_c g_tc·w^c_ts, [B, H, T, T] in at least fp32; arguments as in `record_branch_attention`."""
    q, q_rotated, compressed, selected, sliding = (_wide(x) for x in (q, q_rotated, *keys))
    tokens = one_hot_values(selected)
    cut = {key: options[key] for key in ("block_size", "stride", "cu_seqlens")}
    spread = kernels.nsa_blocks(tokens, **cut).mean(2)
    with torch.autocast(q.device.type, enabled=False):
        pairs = (compressed, spread), (selected, tokens), (sliding, tokens)
        o = kernels.nsa_attention(q, *pairs, gates, q_rotated=q_rotated, backend="reference", **options)
    return o.transpose(1, 2)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
