"""What attention shows a probe: its weights, its gates, and which tokens a query may read.

Weights come from the public operations' definitions (`backend="reference"`), with one-hot values, so that the fused
kernels of the pass stay fused. They take q and k as the pass has them, and are computed in at least fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from zoo.context import Context
from zoo.probe import one_hot_values

BRANCHES = ("compressed", "selected", "window")


def attention_weights(attend: Callable[..., Tensor], q: Tensor, k: Tensor, *more: Any, **options) -> Tensor:
    """How much of token s goes into token t, [B, H, T, T] in at least fp32.

    attend: an operation of `kernels` that is called as attend(q, k, v, *more, **options); q [B, T, H, K], k
    [B, T, Hkv, K]. Its values are replaced, so it needs none here.
    """
    q, k = _wide(q), _wide(k)
    with torch.autocast(q.device.type, enabled=False):
        return attend(q, k, one_hot_values(k), *more, backend="reference", **options).transpose(1, 2)


def readable(attend: Callable[..., Tensor], q: Tensor, k: Tensor, *more: Any, **options) -> Tensor:
    """Which tokens s a query t may read, bool [B, H, T, T]: with equal scores their weights are above 0."""
    return attention_weights(attend, torch.zeros_like(q), k, *more, **options) > 0


def show_attention(
    ctx: Context, attend: Callable[..., Tensor], q: Tensor, k: Tensor, *more: Any, **options
) -> None:
    """Show the weights of attend(q, k, v, *more, **options)."""
    ctx.show("attention", lambda: {"weights": attention_weights(attend, q, k, *more, **options)})


def show_sparse(ctx: Context, q: Tensor, k: Tensor, indices: Tensor | None) -> None:
    """Show attention over the selected keys, which keys these are, and the dense attention they were chosen from.

    indices: [B, T, n] as `kernels.lightning_topk` returns them; None where attention is still dense.
    """
    packed = {"cu_seqlens": ctx.cu_seqlens}
    if indices is None:
        show_attention(ctx, kernels.attention, q, k, **packed)
        return
    show_attention(ctx, kernels.sparse_attention, q, k, indices, **packed)
    ctx.show(
        "selection",
        lambda: {
            "selected": readable(kernels.sparse_attention, q, k, indices, **packed),
            "dense": attention_weights(kernels.attention, q, k, **packed),
        },
    )


def show_gates(ctx: Context, x: Tensor, width: int, **gates: nn.Module | None) -> None:
    """Show gates of x [B, T, D] by name, [B, T, heads, width] each; those that are None are not there.

    A gate on values has as many heads as there are KV heads.
    """
    there = {name: gate for name, gate in gates.items() if gate is not None}
    if there:
        ctx.show("gates", lambda: {name: gate(x).unflatten(-1, (-1, width)) for name, gate in there.items()})


def show_branches(
    ctx: Context, q: Tensor, q_rotated: Tensor, keys: tuple[Tensor, ...], gates: Tensor, sizes: dict[str, int]
) -> None:
    """Show gates, attention and selection of `kernels.nsa_attention`.

        w_ts = Σ_c g_tc·w^c_ts / Σ_s Σ_c g_tc·w^c_ts       c: compression, selection, window

    with a block's weight in the compression branch spread evenly over the block's tokens. That branch has no
    weights for a query that sees no block; the other two then make up the row.

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

    ctx.show("gates", lambda: dict(zip(BRANCHES, gates.detach().unbind(-1), strict=True)))
    ctx.show("attention", lambda: {"weights": weights()})
    ctx.show("selection", lambda: {"selected": selected()})


def branch_weights(
    q: Tensor, q_rotated: Tensor, keys: tuple[Tensor, ...], gates: Tensor, options: dict[str, Any]
) -> Tensor:
    """Σ_c g_tc·w^c_ts, [B, H, T, T] in at least fp32; arguments as in `show_branches`."""
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
