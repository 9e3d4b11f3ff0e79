"""`P`: softmax attention whose positions are products of Householder matrices, with a forget gate (PaTH-FoX)."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kernels
from zoo.context import Context
from zoo.interfaces import Aux, Dims, Mixer
from zoo.modules import (
    ForgetGate,
    OutputProjection,
    RowCache,
    ShortConvolution,
    by_sequence,
    fp32_linear,
    l2norm,
    project,
)
from zoo.options import added, at_least, head_width, kv_heads
from zoo.probes.events import attention_values
from zoo.registry import register_mixer

RANK = 32
TAPS = 3


@dataclass
class PathFoxConfig:
    """Options of PaTH attention with forgetting.

    n_heads: query heads H (None: the model's); n_kv_heads: heads of keys and values (None: as many as query heads);
    head_width: K, width of a head (None: D/H); rank: rank of the low-rank map from x to w (None: 32, in models narrower
    than 256 an eighth of the width); householder: PaTH's accumulated Householder transforms between query and key;
    False leaves the forgetting transformer (FoX); forget_gate: the forget gate's logs, summed from key to query and
    added to the score; False leaves PaTH, and both False causal attention without positions; forget_bias: b_f, the
    forget gate's bias before training.
    """

    n_heads: int | None = None
    n_kv_heads: int | None = None
    rank: int | None = None
    householder: bool = True
    forget_gate: bool = True
    head_width: int | None = added(None, before=None)
    forget_bias: float = added(4.0, before=0.0)


@dataclass
class PathState:
    """The decode state after n tokens; K, V and Hkv as in `PathFox`.

    cache: keys [B, Hkv, n, K], multiplied by every H since their token and so stored in at least fp32; values; and
    with a forget gate Σ g since every token, [B, H, n, 1], in at least fp32; taps: the convolution's inputs.
    """

    cache: RowCache
    taps: Tensor | None


@register_mixer(
    "path_fox",
    letter="P",
    config=PathFoxConfig,
    title="PaTH attention with forgetting",
    family="softmax attention",
    color="#B8860B",
    mask="fading",
    source="Yang et al. 2025 (arXiv:2505.16381); forget gate: Lin et al. 2025 (arXiv:2503.02130)",
    sketch="""
    x
    q | k | v | w, β | f
    path H, forgetting
    softmax over s ≤ t
    y
    """,
)
class PathFox(Mixer):
    """Attention along a data-dependent path.

        q, k, v = x·W_q, x·W_k, x·W_v                   [B, T, H, K], [B, T, Hkv, K], [B, T, Hkv, K]
        w = L2norm(SiLU(conv3(x·W_low·W_up)))           [B, T, Hkv, K], normalised per head; no positions elsewhere
        β = 2σ(x·W_β + b_β),  g = log σ(x·W_f + b_f)    [B, T, Hkv], [B, T, H]; b_β = 0, b_f = forget_bias at the start
        a_ij = k_jᵀ·H_{j+1}·…·H_i·q_i / √K + Σ_{s=j+1..i} g_s,     H_s = I − β_s·w_s·w_sᵀ
        o_i = Σ_{j ≤ i} softmax_j(a_ij)·v_j,  y = o·W_o

    Query head h reads KV head ⌊h·Hkv/H⌋. Decode state: the transformed keys (k_j ← H_t·k_j before k_t is
    appended), values, the sum of g since every token, and the last inputs of the convolution.
    """

    state_options = ("head_width",)
    context_parallel = True

    def __init__(self, config: PathFoxConfig, dims: Dims) -> None:
        super().__init__()
        self.heads = dims.heads(config.n_heads)
        self.width = head_width(dims.d_model, self.heads, "n_heads", config.head_width)
        self.kv_heads = kv_heads(config.n_kv_heads, self.heads, "path_fox", default=self.heads)
        self.backend, self.step_backend = dims.backend, dims.step_backend
        rank = max(1, min(RANK, dims.d_model // 8)) if config.rank is None else config.rank
        at_least(rank, 1, "path_fox.rank")
        at_least(config.forget_bias, 0, "path_fox.forget_bias")
        inner, inner_kv = self.heads * self.width, self.kv_heads * self.width
        self.q_proj = nn.Linear(dims.d_model, inner, bias=False)
        self.k_proj = nn.Linear(dims.d_model, inner_kv, bias=False)
        self.v_proj = nn.Linear(dims.d_model, inner_kv, bias=False)
        self.o_proj = OutputProjection(inner, dims.d_model, bias=False)
        factors = dims.d_model, rank, self.kv_heads, self.width, dims.backend
        self.turn = HouseholderFactors(*factors) if config.householder else None
        self.forget = ForgetGate(dims.d_model, self.heads, config.forget_bias) if config.forget_gate else None

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], no losses)."""
        q, k, v = self._qkv(x)
        attend, path = kernels.attention, ()
        if self.turn is not None or self.forget is not None:
            w, beta = (None, None) if self.turn is None else self.turn(x, ctx)
            attend, path = kernels.path_attention, (w, beta, self._log_gate(x))
        o = ctx.by_heads(functools.partial(attend, backend=self.backend), q, k, v, *path)
        ctx.record("attention", lambda: attention_values(attend, q, k, *path, cu_seqlens=ctx.cu_seqlens))
        return self.o_proj(o.flatten(-2)), {}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """An empty cache of keys, values and forgetting, and the convolution's inputs before the first token."""
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch_size, self.kv_heads, capacity, self.width)
        rows = [
            torch.zeros(shape, device=device, dtype=kind) for kind in (wide if self.turn else dtype, dtype)
        ]
        if self.forget is not None:
            rows.append(torch.zeros(batch_size, self.heads, capacity, 1, device=device, dtype=wide))
        taps = self.turn.conv.init_state(batch_size, device, dtype) if self.turn else None
        return PathState(RowCache(*rows), taps)

    def extend(self, x: Tensor, state: PathState) -> tuple[Tensor, PathState]:
        """The next tokens: x [B, T, D] -> (y [B, T, D], the state with older keys turned and the tokens' appended)."""
        w = beta = None
        if self.turn is not None:
            w, beta, state.taps = self.turn.extend(x, state.taps)
        o = by_sequence(self._attend, state.cache, *self._qkv(x), w, beta, self._log_gate(x))
        return self.o_proj(o.flatten(-2)), state

    def _attend(self, cache: RowCache, q: Tensor, k: Tensor, v: Tensor, *path: Tensor | None) -> Tensor:
        """o [B, T, H, K] of the next tokens, whose keys and values join the cache; path: w, β and g."""
        log_gate = path[-1]
        new = [] if log_gate is None else [torch.zeros_like(log_gate.transpose(1, 2)).unsqueeze(-1)]
        keys, values, *forgotten = cache.append(k.transpose(1, 2), v.transpose(1, 2), *new)
        sums = forgotten[0].squeeze(-1) if forgotten else None
        if q.shape[1] > 1:
            return kernels.path_extend(q, keys, values, *path, sums)
        token = (None if x is None else x[:, 0] for x in path)
        return kernels.path_step(q[:, 0], keys, values, *token, sums, backend=self.step_backend)[:, None]

    def _qkv(self, x: Tensor) -> tuple[Tensor, ...]:
        qkv = project(x, self.q_proj, self.k_proj, self.v_proj)
        return tuple(y.unflatten(-1, (-1, self.width)) for y in qkv)

    def _log_gate(self, x: Tensor) -> Tensor | None:
        """g [..., H] in at least fp32."""
        return None if self.forget is None else self.forget(x)


class HouseholderFactors(nn.Module):
    """The parts of H_t = I − β_t·w_t·w_tᵀ, per KV head: w [..., Hkv, K] of length 1 and β [..., Hkv] in (0, 2)."""

    def __init__(self, d_model: int, rank: int, heads: int, width: int, backend: str) -> None:
        super().__init__()
        self.width = width
        self.w_low = nn.Linear(d_model, rank, bias=False)
        self.w_up = nn.Linear(rank, heads * width, bias=False)
        self.conv = ShortConvolution(heads * width, TAPS, "silu", backend=backend)
        self.beta = nn.Linear(d_model, heads)

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Whole sequences: x [B, T, D] -> (w [B, T, Hkv, K], β [B, T, Hkv])."""
        return self._w(self.conv(self.w_up(self.w_low(x)), ctx)), self._beta(x)

    def extend(self, x: Tensor, taps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next tokens: x [B, T, D] -> (w [B, T, Hkv, K], β [B, T, Hkv], the convolution's inputs after them)."""
        y, taps = self.conv.extend(self.w_up(self.w_low(x)), taps)
        return self._w(y), self._beta(x), taps

    def _w(self, y: Tensor) -> Tensor:
        return l2norm(y.unflatten(-1, (-1, self.width)))

    def _beta(self, x: Tensor) -> Tensor:
        return 2 * torch.sigmoid(fp32_linear(x, self.beta.weight) + self.beta.bias)
