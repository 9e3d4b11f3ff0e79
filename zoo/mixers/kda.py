"""`K`: Kimi delta attention, a gated delta rule with a decay rate for each channel."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kernels
from zoo.context import Context
from zoo.interfaces import Aux, Dims, Mixer
from zoo.modules import (
    LogDecay,
    OutputProjection,
    RMSNorm,
    ShortConvolution,
    fp32_linear,
    fp32_linears,
    joins,
    l2norm,
    project,
)
from zoo.options import added, at_least, default_recurrent_heads, head_width, one_of
from zoo.probes.events import recurrence_values
from zoo.registry import register_mixer

DECAYS = ("channel", "head")


@dataclass
class KDAConfig:
    """Options of Kimi delta attention.

    n_heads: heads H (None: half the model's, so that a head is twice as wide, or all where they are odd); head_width:
    K, width of a head (None: D/H); kernel_size: taps of the short convolution; neg_eigval: β in (0, 2), so that a token
    can flip the state along its key: with β in (0, 1) no state can track parity or permutations; decay: how many rates
    of forgetting a head has, "channel", one a channel, or "head", one: Gated DeltaNet's; gate_bias: a bias of the
    output's gate, which the published Kimi Linear lacks.
    """

    n_heads: int | None = None
    kernel_size: int = 4
    neg_eigval: bool = False
    head_width: int | None = added(None, before=None)
    decay: str = added("channel", before="channel")
    gate_bias: bool = added(True, before=True)


@dataclass
class KDAState:
    """S [B, H, K, K], and the inputs [B, 3·H·K, k−1] that the convolution of q, k and v still needs."""

    memory: Tensor
    convolution: Tensor


@register_mixer(
    "kda",
    letter="K",
    config=KDAConfig,
    title="Kimi delta attention",
    family="linear recurrence",
    color="#009E73",
    mask="recurrent",
    source="Kimi Team 2025, Kimi Linear (arXiv:2510.26692)",
    sketch="""
    x
    q | k | v | β, g
    S: decay, write ↻
    read Sᵀq
    y
    """,
)
class KDA(Mixer):
    """The gated delta rule with a gate per channel. A head of width K:

        q, k = L2norm(SiLU(conv(x·W))), likewise;  v = SiLU(conv(x·W_v))                  [B, T, H, K]
        β = σ(x·W_β), or 2σ(x·W_β)                                                       [B, T, H]
        g = −exp(A_log)·softplus(x·W_↓·W_↑ + dt_bias)                                    [B, T, H, K]
            −exp(A_log)·softplus(x·W_g + dt_bias) with decay=head                        [B, T, H]
        S_t = (I − β_t·k_t·k_tᵀ)·Diag(exp g_t)·S_{t−1} + β_t·k_t·v_tᵀ;  o_t = K^(−½)·S_tᵀ·q_t
        y = (RMSNorm(o) ⊙ σ(x·V_↓·V_↑ + b))·W_o             the norm per head, one gain for all; b by option

    A_log [H], dt_bias [H, K] or [H]; the low ranks are K. No positions. Decode state: S and the last k−1 inputs of the
    convolution, constant in T.
    """

    state_options = ("head_width",)
    context_parallel = True

    def __init__(self, config: KDAConfig, dims: Dims) -> None:
        super().__init__()
        at_least(config.kernel_size, 1, "kda.kernel_size")
        one_of(config.decay, DECAYS, "kda.decay")
        d_model = dims.d_model
        default = default_recurrent_heads(dims.n_heads)
        self.heads = default if config.n_heads is None else config.n_heads
        self.width = head_width(d_model, self.heads, "kda.n_heads", config.head_width)
        inner = self.heads * self.width
        self.top_beta = 2.0 if config.neg_eigval else 1.0
        self.backend = dims.backend
        self.qkv_proj = nn.Linear(d_model, 3 * inner, bias=False)
        self.convolution = ShortConvolution(3 * inner, config.kernel_size, "silu", backend=dims.backend)
        self.beta_proj = nn.Linear(d_model, self.heads, bias=False)
        self.per_channel = config.decay == "channel"
        if self.per_channel:
            self.decay_down = nn.Linear(d_model, self.width, bias=False)
            self.decay_up = nn.Linear(self.width, inner, bias=False)
            self.decay = LogDecay((self.heads, 1), (self.heads, self.width))
        else:
            self.decay_proj = nn.Linear(d_model, self.heads, bias=False)
            self.decay = LogDecay((self.heads,), (self.heads,))
        self.gate_down = nn.Linear(d_model, self.width, bias=False)
        self.gate_up = nn.Linear(self.width, inner, bias=config.gate_bias)
        self.o_norm = RMSNorm(self.width, dims.norm_eps)
        self.o_proj = OutputProjection(inner, d_model, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], no losses)."""
        qkv, low = self._projections(x)
        inputs = *self.convolution.heads(qkv, ctx, (self.heads,) * 3), *self._gates(x)
        delta_rule = functools.partial(kernels.delta_rule, backend=self.backend)
        before = ctx.delta_state_before(delta_rule, inputs)
        o, _ = delta_rule(*inputs, initial_state=before, cu_seqlens=ctx.cu_seqlens)
        self._record(ctx, inputs)
        return self._out(o, x, low), {}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """Zeros: S in at least fp32 and the convolution's inputs; the same size whatever the capacity."""
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch_size, self.heads, self.width, self.width)
        before = self.convolution.init_state(batch_size, device=device, dtype=dtype)
        return KDAState(torch.zeros(shape, device=device, dtype=wide), before)

    def extend(self, x: Tensor, state: KDAState) -> tuple[Tensor, KDAState]:
        """The next tokens: x [B, T, D] -> (y [B, T, D], a new state)."""
        qkv, convolution = self.convolution.extend(self.qkv_proj(x), state.convolution)
        inputs = self._inputs(x, qkv)
        o, memory = kernels.delta_rule(
            *inputs, initial_state=state.memory, output_final_state=True, backend=self.backend
        )
        return self._out(o, x), KDAState(memory, convolution)

    def _inputs(self, x: Tensor, qkv: Tensor) -> tuple[Tensor, ...]:
        """x [B, T, D] and the convolved q, k, v [B, T, 3·H·K] -> q, k, v, g, β of the delta rule."""
        q, k, v = qkv.unflatten(-1, (3, self.heads, self.width)).unbind(-3)
        return l2norm(q), l2norm(k), v, *self._gates(x)

    def _projections(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x·W of q, k and v together [B, T, 3·H·K], and x·V_↓ [B, T, K] where one product makes both."""
        return project(x, self.qkv_proj, self.gate_down) if joins(x) else (self.qkv_proj(x), None)

    def _out(self, o: Tensor, x: Tensor, low: Tensor | None = None) -> Tensor:
        gate = self.gate_up(self.gate_down(x) if low is None else low)
        return self.o_proj(self.o_norm.of_heads(o, gate, self.backend))

    def _record(self, ctx: Context, inputs: tuple[Tensor, ...]) -> None:
        def states(*part: Tensor) -> Tensor:
            return kernels.delta_rule(*part, output_final_state=True, backend=self.backend)[1].unsqueeze(1)

        def rates() -> Tensor:
            g = inputs[3]
            return (g if self.per_channel else g.unsqueeze(-1)).unsqueeze(2)

        ctx.record("recurrence", lambda: recurrence_values(ctx, states, inputs, log_decay=rates()))

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """g [B, T, H, K] or [B, T, H], and β [B, T, H], in at least fp32."""
        first = self.decay_down if self.per_channel else self.decay_proj
        # In this order: gradients of x are added in the order of its uses, and runs keep their bits by it.
        raw, strength = fp32_linears(x, first.weight, self.beta_proj.weight)
        if self.per_channel:
            raw = fp32_linear(raw, self.decay_up.weight).unflatten(-1, (self.heads, self.width))
        return self.decay(raw, strength, self.top_beta, self.backend)
