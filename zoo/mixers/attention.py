"""`F`: full softmax attention, the mixer of the plain transformer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kernels
from zoo.cache import KVCache
from zoo.context import Context
from zoo.errors import UserError
from zoo.mixer import Aux, Mixer
from zoo.modules import Dims, Gate, OutputProjection, RMSNorm, even_width, head_width, positive
from zoo.registry import register_mixer
from zoo.showing import show_attention, show_gates


@dataclass
class AttentionConfig:
    """Options of full attention; everything beyond the plain transformer is off by default.

    n_heads, n_kv_heads: None for the model's heads, and as many KV heads; rope_base: base of rotary positions;
    positions: "rope" or "none"; qk_norm: RMSNorm per head on q and k before the rotation; window: how many tokens,
    the current one included, a query sees (None: all); output_gate (G1), value_gate (G2): o ⊙ σ(x·W+b), v ⊙ σ(x·W+b).
    """

    n_heads: int | None = None
    n_kv_heads: int | None = None
    rope_base: float = 1e4
    positions: str = "rope"
    qk_norm: bool = False
    window: int | None = None
    output_gate: bool = False
    value_gate: bool = False


@register_mixer(
    "attention",
    letter="F",
    config=AttentionConfig,
    title="Full attention",
    family="softmax attention",
    color="#4D4D4D",
    mask="causal",
    source="Vaswani et al. 2017 (arXiv:1706.03762); grouped queries: Ainslie et al. 2023 (arXiv:2305.13245)",
)
class Attention(Mixer):
    """Grouped-query softmax attention with rotary positions.

        q, k, v = x·W_q, x·W_k, x·W_v        [B, T, H, K], [B, T, Hkv, K], [B, T, Hkv, K]
        o_t = Σ_{s ≤ t} softmax_s(RoPE(q_t, t)·RoPE(k_s, s) / √K) · v_s
        y = o·W_o                            [B, T, D]

    Query head h reads KV head ⌊h·Hkv/H⌋. Decode state: the keys (rotated) and values of all tokens.
    """

    def __init__(self, config: AttentionConfig, dims: Dims) -> None:
        super().__init__()
        self.heads = dims.n_heads if config.n_heads is None else config.n_heads
        self.kv_heads = self.heads if config.n_kv_heads is None else config.n_kv_heads
        self.width = head_width(dims.d_model, self.heads, "n_heads")
        self.backend, self.step_backend = dims.backend, dims.step_backend
        self._check(config)
        self.rope_base = config.rope_base if config.positions == "rope" else None
        self.window = config.window
        inner, inner_kv = self.heads * self.width, self.kv_heads * self.width
        self.q_proj = nn.Linear(dims.d_model, inner, bias=False)
        self.k_proj = nn.Linear(dims.d_model, inner_kv, bias=False)
        self.v_proj = nn.Linear(dims.d_model, inner_kv, bias=False)
        self.o_proj = OutputProjection(inner, dims.d_model, bias=False)
        self.q_norm = RMSNorm(self.width) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.width) if config.qk_norm else nn.Identity()
        self.output_gate = Gate(dims.d_model, inner) if config.output_gate else None
        self.value_gate = Gate(dims.d_model, inner_kv) if config.value_gate else None

    def _check(self, config: AttentionConfig) -> None:
        if config.positions not in ("rope", "none"):
            raise UserError(f"attention.positions is 'rope' or 'none', not '{config.positions}'")
        if config.positions == "rope":
            even_width(self.width, "attention")
        positive(config.rope_base, "attention.rope_base")
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise UserError(f"attention.n_kv_heads={self.kv_heads} does not divide n_heads={self.heads}")
        if config.window is not None and config.window < 1:
            raise UserError(f"attention.window={config.window} must be at least 1 (the current token counts)")

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        q, k, v = self._qkv(x, ctx.positions)
        options = {"window": self.window, "cu_seqlens": ctx.cu_seqlens}
        o = kernels.attention(q, k, v, backend=self.backend, **options)
        show_attention(ctx, kernels.attention, q, k, **options)
        show_gates(ctx, x, self.width, output=self.output_gate, value=self.value_gate)
        return self._out(o, x), {}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        options = {"capacity": capacity, "window": self.window, "device": device, "dtype": dtype}
        return KVCache(batch_size, self.kv_heads, self.width, **options)

    def step(self, x: Tensor, state: KVCache) -> tuple[Tensor, KVCache]:
        x = x[:, None]
        position = torch.full(x.shape[:2], state.appended, device=x.device)
        q, k, v = self._qkv(x, position)
        state.append(k[:, 0], v[:, 0])
        keys, values = (y.transpose(1, 2).to(q.dtype) for y in state.read())
        o = kernels.attention(q, keys, values, causal=False, backend=self.step_backend)
        return self._out(o, x)[:, 0], state

    def _qkv(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v = self.v_proj(x)
        if self.value_gate is not None:
            v = v * self.value_gate(x)
        q, k, v = (y.unflatten(-1, (-1, self.width)) for y in (self.q_proj(x), self.k_proj(x), v))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rope_base is not None:
            q, k = kernels.rope(q, positions, self.rope_base), kernels.rope(k, positions, self.rope_base)
        return q, k, v

    def _out(self, o: Tensor, x: Tensor) -> Tensor:
        o = o.flatten(-2)
        if self.output_gate is not None:
            o = o * self.output_gate(x)
        return self.o_proj(o)
