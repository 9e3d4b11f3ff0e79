"""`F`: full softmax attention, the mixer of the plain transformer."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kernels
from zoo.context import Context
from zoo.interfaces import Aux, Dims
from zoo.mixers.grouped_query import GroupedQueryMixer
from zoo.modules import KVCache, by_sequence, positions
from zoo.modules.rotary import PartialRopeOptions
from zoo.options import added, at_least, grouped_kv_heads, one_of
from zoo.probes.events import attention_values, attention_weights, record_gates
from zoo.registry import register_mixer


@dataclass
class AttentionConfig(PartialRopeOptions):
    """Options of full attention; everything beyond the plain transformer is off by default.

    n_heads: query heads H (None: the model's); n_kv_heads: heads of keys and values (None: as many as query heads);
    max_kv_heads: if n_kv_heads is None, the largest number of KV heads up to this that divides n_heads and is smaller
    than it; head_width: K, width of a head (None: D/H); positions: "rope" or "none"; rope_base: base of rotary
    positions; qkv_bias: biases of the projections to q, k and v; qk_norm: RMSNorm per head on q and k before the
    rotation; window: how many tokens, the current one included, a query attends to (None: all); output_gate: gate G1, o
    ⊙ σ(x·W + b), on attention's output; value_gate: gate G2, v ⊙ σ(x·W + b), on the values; sinks: "learned": a logit
    more in each head's softmax, whose weight is dropped, or "none".

    Rotary positions by the options of RopeOptions and rope_dim.
    """

    n_heads: int | None = None
    n_kv_heads: int | None = None
    rope_base: float = 1e4
    positions: str = "rope"
    qk_norm: bool = False
    window: int | None = None
    output_gate: bool = False
    value_gate: bool = False
    max_kv_heads: int | None = added(None, before=None)
    head_width: int | None = added(None, before=None)
    qkv_bias: bool = added(False, before=False)
    sinks: str = added("none", before="none", choices=("none", "learned"))


@register_mixer(
    "attention",
    letter="F",
    config=AttentionConfig,
    title="Full attention",
    family="softmax attention",
    color="#4D4D4D",
    mask="causal",
    source="Vaswani et al. 2017 (arXiv:1706.03762); grouped queries: Ainslie et al. 2023 (arXiv:2305.13245)",
    sketch="""
    x
    q | k | v
    softmax over s ≤ t
    y
    """,
)
class Attention(GroupedQueryMixer):
    """Grouped-query softmax attention with rotary positions.

        q, k, v = x·W_q, x·W_k, x·W_v        [B, T, H, K], [B, T, Hkv, K], [B, T, Hkv, K]
        o_t = Σ_{s ≤ t} softmax_s(RoPE(q_t, t)·RoPE(k_s, s) / √K) · v_s
        y = o·W_o                            [B, T, D]

    RoPE as in kernels.rope. By option q, k and v have biases, q and k an RMSNorm per head before the rotation, and
    gates σ(x·W + b) multiply the values and the output. Query head h reads KV head ⌊h·Hkv/H⌋. Decode state: the keys
    (rotated) and values of all tokens.

    Sinks (gpt-oss: OpenAI 2025, arXiv:2508.10925): with z_t = Σ_{s ≤ t} exp(score_ts), o_t is multiplied by
    z_t / (z_t + exp(sink_h)), which a probe records as the gate `sinks`; a sink is 0 at first.
    """

    state_options = ("head_width",)
    context_parallel = True

    def __init__(self, config: AttentionConfig, dims: Dims) -> None:
        one_of(config.positions, ("rope", "none"), "attention.positions")
        at_least(config.window, 1, "attention.window")
        at_least(config.max_kv_heads, 1, "attention.max_kv_heads")
        heads = dims.heads(config.n_heads)
        most = config.max_kv_heads
        super().__init__(
            "attention",
            dims,
            config,
            heads,
            default_kv_heads=heads if most is None else grouped_kv_heads(heads, most),
            rotates=config.positions == "rope",
        )
        self.window = config.window
        self.sinks = nn.Parameter(torch.zeros(heads)) if config.sinks == "learned" else None

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], no losses)."""
        q, k, v = self._qkv(x, ctx.positions)
        options = {"window": self.window, "sinks": self.sinks}
        attend = functools.partial(kernels.attention, **options, backend=self.backend)
        o = ctx.by_keys(attend, (q,), (k, v))
        seen = {"window": self.window, "cu_seqlens": ctx.cu_seqlens}
        ctx.record("attention", lambda: attention_values(kernels.attention, q, k, **seen))
        if self.sinks is not None:
            dropping = functools.partial(kernels.attention, sinks=self.sinks)
            kept = functools.partial(attention_weights, dropping, q, k, **seen)
            ctx.record("gates", lambda: {"sinks": kept().sum(-1).transpose(1, 2).unsqueeze(-1)})
        record_gates(ctx, x, self.width, output=self.output_gate, value=self.value_gate)
        return self._out(o, x), {}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """An empty cache of keys (rotated) and values [B, Hkv, T, K], bounded by the window if there is one."""
        options = {"capacity": capacity, "window": self.window, "device": device, "dtype": dtype}
        return KVCache(batch_size, self.kv_heads, self.width, **options)

    def extend(self, x: Tensor, state: KVCache) -> tuple[Tensor, KVCache]:
        """The next tokens: x [B, T, D] -> (y [B, T, D], the cache with their keys and values)."""
        q, k, v = self._qkv(x, positions(state, x.shape[1], x.device))
        return self._out(by_sequence(self._attend, state, q, k, v), x), state

    def _attend(self, cache: KVCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o [B, T, H, K] of the next tokens, whose keys and values join the cache."""
        seen = cache.append(k.transpose(1, 2), v.transpose(1, 2))
        keys, values = (y.transpose(1, 2).to(q.dtype) for y in seen)
        if q.shape[1] == 1:
            return kernels.attention(
                q, keys, values, causal=False, sinks=self.sinks, backend=self.step_backend
            )
        options = {"window": self.window, "sinks": self.sinks}
        return kernels.attention(q, keys, values, **options, backend=self.step_backend)
