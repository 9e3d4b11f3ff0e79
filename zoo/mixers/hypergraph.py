"""`S`: HyperGraph sparse attention, where every head routes each token to one of several timelines."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from zoo.context import Context
from zoo.errors import UserError
from zoo.interfaces import Aux, Dims, Mixer
from zoo.modules import (
    GroupedKVCache,
    OutputProjection,
    by_sequence,
    fp32_linear,
    positions,
    project,
)
from zoo.options import added, at_least, even_width, head_width, one_of, positive
from zoo.probes.events import attention_values
from zoo.registry import register_mixer


@dataclass
class HyperGraphConfig:
    """Options of HyperGraph sparse attention.

    n_heads: heads H (None: the model's); n_timelines: timelines a head; temperature: τ of the routing softmax;
    positions: rotary positions counted inside the timeline ("local") or the sequence ("global"); rope_base: base of
    rotary positions; aux_weight: weight of the balance loss in training; top_k: a timeline's weight is its probability
    over the sum of the token's top_k largest ones (1: the probability itself); entropy_weight: weight of the routing's
    entropy inside the balance loss; z_weight: weight of the squared logsumexp of the router's logits inside the balance
    loss; head_width: K, width of a head (None: D/H).
    """

    n_heads: int | None = None
    n_timelines: int = 6
    temperature: float = 1.0
    positions: str = "local"
    rope_base: float = 1e4
    aux_weight: float = 0.01
    top_k: int = added(2, before=2)
    entropy_weight: float = added(0.01, before=0.01)
    z_weight: float = added(0.01, before=0.01)
    head_width: int | None = added(None, before=None)


@register_mixer(
    "hypergraph",
    letter="S",
    config=HyperGraphConfig,
    title="HyperGraph sparse attention",
    family="sparse attention",
    color="#E69F00",
    mask="timeline",
    source="HyperGraph Sparse Attention report",
    choice="timeline",
    sketch="""
    x
    router | q | k | v
    line 1 #0 | line 2 #1 | line 3 #2
    softmax in each
    × routing weight
    y
    """,
)
class HyperGraph(Mixer):
    """Causal attention among the tokens that a head has sent to the same timeline.

        L = x·W_route                                   logits [B, T, H, G]
        P = softmax((L + Gumbel noise) / τ)             in training; softmax(L / τ) in evaluation
        t_i = argmax P_i,  w_i = P_i,first / Σ of the top_k largest P_i     for two of them ∈ [½, 1]
        o_i = w_i · Σ_{j ≤ i, t_j = t_i} softmax_j(q_i·k_j / √K) · v_j,     y = o·W_o

    With top_k = 1 the weight would always be 1, and attention would give the router no gradient: w_i is P_i,first
    itself, as it also is with top_k = G. A token attends in one timeline whatever top_k is.

    Auxiliary loss `timeline_balance`, per sequence and head, then averaged:
    G·Σ_g f_g·p_g − entropy_weight·H(P) + z_weight·logsumexp(L)², with f_g the share of tokens sent to g, p_g the mean
    of P_g, H in nats; entropy and z-term are token means. Decode state: one list of keys and values per
    (head, timeline).
    """

    state_options = ("head_width",)
    context_parallel = True

    def __init__(self, config: HyperGraphConfig, dims: Dims) -> None:
        super().__init__()
        self.heads = dims.heads(config.n_heads)
        self.width = head_width(dims.d_model, self.heads, "n_heads", config.head_width)
        self._check(config)
        self.timelines = config.n_timelines
        self.temperature = config.temperature
        self.top_k = min(config.top_k, config.n_timelines)
        self.entropy_weight, self.z_weight = config.entropy_weight, config.z_weight
        self.local = config.positions == "local"
        self.rope_base = config.rope_base
        self.layer = dims.layer
        self.backend, self.body_backend = dims.backend, dims.body_backend
        self.aux_weights = {"timeline_balance": config.aux_weight}
        inner = self.heads * self.width
        self.q_proj = nn.Linear(dims.d_model, inner, bias=False)
        self.k_proj = nn.Linear(dims.d_model, inner, bias=False)
        self.v_proj = nn.Linear(dims.d_model, inner, bias=False)
        self.o_proj = OutputProjection(inner, dims.d_model, bias=False)
        self.route = nn.Linear(dims.d_model, self.heads * self.timelines, bias=False)

    def _check(self, config: HyperGraphConfig) -> None:
        even_width(self.width, "hypergraph")
        one_of(config.positions, ("local", "global"), "hypergraph.positions")
        at_least(config.n_timelines, 1, "hypergraph.n_timelines")
        if not 1 <= config.top_k <= max(2, config.n_timelines):  # 2 is the default of a single timeline, too
            raise UserError(
                f"hypergraph.top_k={config.top_k} must lie between 1 and n_timelines={config.n_timelines}"
            )
        at_least(config.entropy_weight, 0, "hypergraph.entropy_weight")
        at_least(config.z_weight, 0, "hypergraph.z_weight")
        positive(config.temperature, "hypergraph.temperature")
        positive(config.rope_base, "hypergraph.rope_base")

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], {"timeline_balance": scalar})."""
        logits = self._logits(x)
        noisy = logits
        if self.training and ctx.noise_keys is not None:
            noisy = logits + kernels.gumbel_noise(
                ctx.noise_keys, ctx.positions, self.layer, self.heads, self.timelines
            ).to(logits.dtype)
        probabilities, timeline, weight = self._routes(noisy)
        q, k, v = self._qkv(x)
        if not self.local:
            q, k = kernels.rope_each((q, k), ctx.positions, self.rope_base, backend=self.body_backend)
        options = {"n_timelines": self.timelines, "rope_base": self.rope_base if self.local else None}

        def attend(q: Tensor, k: Tensor, v: Tensor, timeline: Tensor, weight: Tensor, **packed) -> Tensor:
            shared = {**options, **packed}
            ctx.record(
                "attention", lambda: attention_values(kernels.timeline_attention, q, k, timeline, **shared)
            )
            return kernels.timeline_attention(
                q, k, v, timeline, weight=weight, backend=self.backend, **shared
            )

        o = ctx.by_heads(attend, q, k, v, timeline, weight)
        ctx.record(
            "routing",
            lambda: {"probabilities": probabilities.detach(), "choices": timeline[..., None]},
        )
        y = self.o_proj(o.flatten(-2))
        return y, {"timeline_balance": self._balance(logits, probabilities, timeline, ctx)}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """Empty lists of keys and values, one per head and timeline."""
        rows = -(
            -capacity // self.timelines
        )  # enough for balanced routing; a fuller timeline grows by itself
        shape = (batch_size, self.heads, self.timelines, self.width)
        return GroupedKVCache(*shape, rows=rows, device=device, dtype=dtype)

    def extend(self, x: Tensor, state: GroupedKVCache) -> tuple[Tensor, GroupedKVCache]:
        """The next tokens: x [B, T, D] -> (y [B, T, D], the lists, some of them with the tokens' keys and values)."""
        _, timeline, weight = self._routes(self._logits(x))
        at = positions(state, x.shape[1], x.device).expand(x.shape[:2])
        o = by_sequence(self._attend, state, *self._qkv(x), timeline, at)
        return self.o_proj((o * weight[..., None].to(o.dtype)).flatten(-2)), state

    def _attend(
        self, cache: GroupedKVCache, q: Tensor, k: Tensor, v: Tensor, timeline: Tensor, at: Tensor
    ) -> Tensor:
        """o [B, T, H, K] of the next tokens at positions `at` [B, T], whose keys and values join their timelines."""
        row = cache.places(timeline)
        at = row if self.local else at
        q, k = kernels.rope_each((q, k), at, self.rope_base, backend=self.body_backend)
        empty = cache.appended == 0
        cache.append(timeline, k, v)
        if q.shape[1] == 1:
            keys, values, filled = cache.read(timeline[:, 0])
            keys, values = keys.to(q.dtype), values.to(q.dtype)
            o = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=filled[:, :, None])
            return o.transpose(1, 2)
        if empty:  # rotated already
            options = {"n_timelines": self.timelines, "backend": self.backend}
            return kernels.timeline_attention(q, k, v, timeline, **options)
        return attend_to_lists(q, timeline, row, cache.keys, cache.values)

    def _logits(self, x: Tensor) -> Tensor:
        """Router logits [..., H, G] in at least fp32: near-ties decide timelines."""
        return fp32_linear(x, self.route.weight).unflatten(-1, (self.heads, self.timelines))

    def _routes(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities [..., G], the chosen timeline [...] and its weight [...]."""
        probabilities = torch.softmax(logits / self.temperature, -1)
        top, index = probabilities.topk(self.top_k, -1)
        weight = top[..., 0]
        return probabilities, index[..., 0], weight / top.sum(-1) if self.top_k > 1 else weight

    def _qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = project(x, self.q_proj, self.k_proj, self.v_proj)
        return tuple(y.unflatten(-1, (-1, self.width)) for y in qkv)

    def _balance(self, logits: Tensor, probabilities: Tensor, timeline: Tensor, ctx: Context) -> Tensor:
        chosen = F.one_hot(timeline, self.timelines).to(probabilities.dtype)
        share, mean = ctx.sequence_mean(chosen), ctx.sequence_mean(probabilities)
        entropy = -(probabilities * probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()).sum(
            -1
        )
        z = logits.logsumexp(-1).square()
        per_token = ctx.sequence_mean(self.z_weight * z - self.entropy_weight * entropy)
        return (self.timelines * (share * mean).sum(-1) + per_token).mean()


def attend_to_lists(q: Tensor, timeline: Tensor, row: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention [B, T, H, K] of queries over rows 0 … row of their own timeline's list, T·n/G scores if balanced.

    q [B, T, H, K]; timeline, row int64 [B, T, H]: list of a query, and its own place there; keys, values
    [B, H, G, n, K]. Queries are sorted into lists as well, which are filled up to the longest.
    """
    batch, _, heads, width = q.shape
    sent = F.one_hot(timeline, keys.shape[2])
    slot = (sent.cumsum(1) - 1).gather(3, timeline[..., None])[..., 0]
    most, longest = int(slot.max()) + 1, int(row.max()) + 1
    at = (
        torch.arange(batch, device=q.device)[:, None, None],
        torch.arange(heads, device=q.device),
        timeline,
        slot,
    )
    queries = q.new_zeros(batch, heads, keys.shape[2], most, width)
    queries[at] = q
    last = row.new_zeros(
        queries.shape[:-1]
    )  # what fills a list up reads the first row, and is not read itself
    last[at] = row
    visible = torch.arange(longest, device=q.device) <= last[..., None]
    keys, values = (x[:, :, :, :longest].to(q.dtype).flatten(1, 2) for x in (keys, values))
    o = F.scaled_dot_product_attention(queries.flatten(1, 2), keys, values, attn_mask=visible.flatten(1, 2))
    return o.unflatten(1, (heads, -1))[at]
