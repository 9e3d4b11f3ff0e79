"""Probe events: tensors that a block records while it computes, and the probe that receives them.

    def forward(self, x, ctx):
        ...
        ctx.record("gates", lambda: {"output": gate})      # in a block; does nothing without a probe

    probe = Probe(callback, kinds={"gates"})               # callback(ProbeEvent), for every gate of every layer
    model(tokens, Context.of(tokens, probe=probe))

Recorded tensors are computed apart from the model's own and never enter it, so probing changes no output and no
gradient. The kinds that every block may record are here; a block's own file may register more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from zoo.context import Context

_KINDS: dict[str, dict[str, str]] = {}


def register_event(kind: str, /, **values: str) -> None:
    """Register a kind of probe event by its name, with what each of its tensors is: shape and meaning.

        register_event("solver", residuals="[steps + 1, B, T, H]: ‖q − (H + Λ)x‖ / ‖q‖ after so many steps")

    Raises ValueError for a name that is taken by another description, and for what is no text.
    """
    if not all(isinstance(text, str) for text in (kind, *values.values())):
        raise ValueError(
            f"a probe event has a name and descriptions that are texts, not {kind!r}, {values!r}"
        )
    if _KINDS.setdefault(kind, values) != values:
        raise ValueError(
            f"the probe event '{kind}' is already registered, with other tensors; choose another name"
        )


def event_kinds() -> dict[str, dict[str, str]]:
    """Every kind of probe event: the tensors in it by name, each with its shape and meaning."""
    return {kind: dict(values) for kind, values in _KINDS.items()}


@dataclasses.dataclass(frozen=True)
class ProbeEvent:
    """Tensors by name that one sub-block recorded, in the shapes that `event_kinds` gives, [B, T, ...] for most.

    layer: from 0; part: "mixer", "channel" or "head"; block: the registered name of the mixer or channel mixer.
    """

    kind: str
    values: dict[str, Tensor]
    layer: int
    part: str
    block: str = ""


@dataclasses.dataclass(frozen=True)
class Probe:
    """Calls `callback` with every event of the kinds in `kinds` (None: all); place: layer, part and block so far."""

    callback: Callable[[ProbeEvent], None]
    kinds: Collection[str] | None = None
    place: dict[str, int | str] = dataclasses.field(default_factory=dict)

    def at(self, **place: int | str) -> Probe:
        """This probe with more of its place known: layer, part or block."""
        return dataclasses.replace(self, place={**self.place, **place})

    def record(self, kind: str, make: Callable[[], dict[str, Tensor]]) -> None:
        """Call `callback` with the tensors that `make` returns, computed without a graph, if it takes the kind.

        Raises KeyError for a kind that is not registered.

        make: returns the tensors by name, in the shapes that `event_kinds` gives, [B, T, ...] for most.
        """
        if kind not in _KINDS:
            raise KeyError(
                f"unknown probe event '{kind}'; zoo.probes.register_event adds one. Known: {', '.join(_KINDS)}"
            )
        if self.kinds is None or kind in self.kinds:
            with torch.no_grad():
                values = make()
            self.callback(ProbeEvent(kind, values, **self.place))


# Events of attention: its weights, its gates, and the tokens that a query may read.
#
# Weights come from the public operations' definitions (`backend="reference"`) with one-hot values, so that the fused
# kernels of the pass stay fused. They take the q and k of the pass, and are computed in at least fp32.

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


# Kinds that any block may record: B sequences of T tokens, H heads. Those of one block alone are in its own file.

register_event(
    "streams",
    streams="[B, T, D] or [B, T, n, D] before a sub-block (after the last one: part 'head'), attached to the graph",
    pre="[B, T, n], with several streams: how a sub-block reads them",
    post="[B, T, n], with several streams: how its output is written into them",
    res="[B, T, n, n] or of fewer tokens where all are alike: H_res, how the streams mix; of a plain residual (1)",
    path_gain="[], where a scheme has one: the bound of ‖∂(H_res(x)x)/∂x − H_res‖₂ for all x, after its cap",
)
register_event(
    "attention", weights="[B, H, T, T]: how much of token s (last axis) goes into token t; rows sum to 1"
)
register_event("gates", **{"<gate>": "[B, T, H, ...] in (0, 1), one tensor a gate, by the gate's name"})
register_event(
    "selection",
    selected="bool [B, H, T, T]: the tokens that a query may read",
    dense="[B, H, T, T], where the block learns to find what full attention would read: that attention's weights",
)
register_event(
    "routing",
    probabilities="[B, T, H, E]; one head where heads share a router",
    choices="int64 [B, T, H, k], the most probable first",
)
register_event(
    "recurrence",
    states="[B, P, M, H, K, V] after `ends` tokens, in M memories",
    ends="int64 [P], numbers of tokens",
    log_decay="[B, T, M, H, K or 1] in nats, NaN where a token leaves a memory alone",
)


# Events of recurrent mixers: their states along the sequence, and their decays.


def recurrence_values(
    ctx: Context, run: Callable[..., Tensor], inputs: Sequence[Tensor], log_decay: Tensor
) -> dict[str, Tensor]:
    """The tensors of a "recurrence" event: states after an eighth, a quarter, a half and all tokens; log decays.

    run        called with the inputs [B, t, ...] of t tokens; returns the states [B, M, H, K, V] after them, from zeros
    inputs     the arguments of `run` for all tokens, [B, T, ...] each
    log_decay  [B, T, M, H, K or 1] in nats, NaN where a token leaves a memory alone

    In packed input a state is that of the sequence to which the last token belongs, and `ends` counts the tokens of
    this sequence alone.
    """
    length = inputs[0].shape[1]
    ends = list(dict.fromkeys(max(1, length // part) for part in (8, 4, 2, 1)))
    seen = ctx.positions[0, [end - 1 for end in ends]] + 1
    spans = [slice(end - tokens, end) for end, tokens in zip(ends, seen.tolist(), strict=True)]
    states = [run(*(x[:, span] for x in inputs)) for span in spans]
    return {"states": torch.stack(states, 1), "ends": seen, "log_decay": log_decay}
