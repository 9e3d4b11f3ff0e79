"""`M`: the mesa layer of MesaNet, which solves the regression of its values on its keys at every token."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from zoo.context import Context
from zoo.interfaces import Aux, Dims, Mixer
from zoo.modules import (
    ForgetGate,
    OutputProjection,
    RMSNorm,
    ShortConvolution,
    fp32_linear,
    l2norm,
    project,
)
from zoo.options import added, at_least, default_recurrent_heads, head_width
from zoo.probes import Measure, ProbeEvent, Row, by_head, register_event, register_measure
from zoo.probes.events import recurrence_values
from zoo.registry import register_mixer

LAMBDA_FLOOR = 0.25
FORGETTING = 0.0025
"""The part of the state that a full write forgets: it keeps H below a bound even where γ stays near 1."""
SOLVED = 1e-4
"""The relative residual up to which a token counts as solved; errors of outputs were up to four times as large."""


@dataclass
class MesaNetConfig:
    """Options of the mesa layer.

    n_heads: heads H (None: half the model's, so that a head is twice as wide, or all where they are odd); head_width:
    K, width of a head (None: D/H); cg_steps: steps of the conjugate gradient a token; kernel_size: taps of the short
    convolutions; value_conv: convolve the values too; forget_bias: b_γ, the forget gate's bias before training.
    """

    n_heads: int | None = None
    cg_steps: int = 30
    kernel_size: int = 4
    value_conv: bool = False
    head_width: int | None = added(None, before=None)
    forget_bias: float = added(4.0, before=0.0)


@dataclass
class MesaState:
    """H [B, H, K, K], G [B, H, K, K] and the inputs that the convolutions still need, [B, H·K, k−1] each."""

    h_kk: Tensor
    h_kv: Tensor
    convolutions: dict[str, Tensor]


@register_mixer(
    "mesanet",
    letter="M",
    config=MesaNetConfig,
    title="Mesa layer",
    family="linear recurrence",
    color="#CC79A7",
    mask="recurrent",
    source="von Oswald et al. 2025, MesaNet (arXiv:2506.05233)",
    sketch="""
    x
    q | k | v | β, γ
    H, G: decay, write ↻
    solve (H + Λ)u = q
    read Gᵀu
    y
    """,
)
class MesaNet(Mixer):
    """The least-squares linear map from the keys to the values so far, applied to the query. A head:

        q, k = L2norm(SiLU(conv(x·W_q))), L2norm(SiLU(conv(x·W_k)));  v = x·W_v        [B, T, H, K]
        β = σ(x·W_β + b_β);  γ = σ(x·W_γ + b_γ)·(1 − 0.0025·β²)                         [B, T, H]
        H_t = γ_t·H_{t−1} + β_t·k_t·k_tᵀ;  G_t = γ_t·G_{t−1} + β_t·k_t·v_tᵀ             [K, K]
        o_t = G_tᵀ·(H_t + Λ)⁻¹·q_t,  Λ = 0.25 + softplus(λ), 1 at the start              λ [H, K]
        y = RMSNorm(o)·W_o                                    the norm per head, one gain for all

    The inverse is `cg_steps` steps of conjugate gradients. No positions. Decode state: H, G and the last k−1
    inputs of the convolutions, constant in T.
    """

    state_options = ("head_width",)
    work_options = ("cg_steps",)
    context_parallel = True

    def __init__(self, config: MesaNetConfig, dims: Dims) -> None:
        super().__init__()
        for key in ("cg_steps", "kernel_size"):
            at_least(getattr(config, key), 1, f"mesanet.{key}")
        at_least(config.forget_bias, 0, "mesanet.forget_bias")
        default = default_recurrent_heads(dims.n_heads)
        self.heads = default if config.n_heads is None else config.n_heads
        self.width = head_width(dims.d_model, self.heads, "mesanet.n_heads", config.head_width)
        inner = self.heads * self.width
        self.cg_steps = config.cg_steps
        self.backend = dims.backend
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(dims.d_model, inner, bias=False) for _ in range(3))
        self.beta_proj = nn.Linear(dims.d_model, self.heads)
        self.gamma_proj = ForgetGate(dims.d_model, self.heads, config.forget_bias)
        self.convolutions = nn.ModuleDict(
            {
                name: ShortConvolution(inner, config.kernel_size, "silu", backend=dims.backend)
                for name in ("q", "k", "v")[: 3 if config.value_conv else 2]
            }
        )
        self.lamb = nn.Parameter(torch.full((self.heads, self.width), math.log(math.expm1(1 - LAMBDA_FLOOR))))
        self.o_norm = RMSNorm(self.width, dims.norm_eps)
        self.o_proj = OutputProjection(inner, dims.d_model, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], no losses)."""
        qkv = self._projections(x)
        for name, convolution in self.convolutions.items():
            qkv[name] = convolution(qkv[name], ctx)
        inputs = self._inputs(x, qkv)
        before = ctx.mesa_state_before(*inputs[1:])
        o, _ = self._mesa(inputs, initial_state=before, cu_seqlens=ctx.cu_seqlens)
        self._record(ctx, inputs)
        return self._out(o), {}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """Zeros: H and G in at least fp32 and the convolutions' inputs; the same size whatever the capacity."""
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch_size, self.heads, self.width, self.width)
        h_kk = torch.zeros(shape, device=device, dtype=wide)
        before = {
            name: convolution.init_state(batch_size, device=device, dtype=dtype)
            for name, convolution in self.convolutions.items()
        }
        return MesaState(h_kk, torch.zeros_like(h_kk), before)

    def extend(self, x: Tensor, state: MesaState) -> tuple[Tensor, MesaState]:
        """The next tokens: x [B, T, D] -> (y [B, T, D], a new state)."""
        qkv, after = self._projections(x), {}
        for name, convolution in self.convolutions.items():
            qkv[name], after[name] = convolution.extend(qkv[name], state.convolutions[name])
        o, memories = self._mesa(
            self._inputs(x, qkv), initial_state=(state.h_kk, state.h_kv), output_final_state=True
        )
        return self._out(o), MesaState(*memories, after)

    def _projections(self, x: Tensor) -> dict[str, Tensor]:
        return dict(zip("qkv", project(x, self.q_proj, self.k_proj, self.v_proj), strict=True))

    def _inputs(self, x: Tensor, qkv: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """x [B, T, D] and q, k, v [B, T, H·K] -> the operation's inputs of every token: q, k, v, g, β."""
        q, k, v = (qkv[name].unflatten(-1, (self.heads, self.width)) for name in "qkv")
        return l2norm(q), l2norm(k), v, *self._gates(x)

    def _mesa(self, inputs: tuple[Tensor, ...], **options):
        """o [B, T, H, K], and the states H, G where output_final_state is set."""
        options = {"cg_steps": self.cg_steps, "backend": self.backend, **options}
        return kernels.mesa(*inputs, self._lamb(), **options)

    def _lamb(self) -> Tensor:
        return LAMBDA_FLOOR + F.softplus(self.lamb)

    def _out(self, o: Tensor) -> Tensor:
        return self.o_proj(self.o_norm.of_heads(o, None, self.backend))

    def _record(self, ctx: Context, inputs: tuple[Tensor, ...]) -> None:
        q, k, _, g, beta = inputs

        def states(*part: Tensor) -> Tensor:
            _, (_, h_kv) = self._mesa(part, output_final_state=True, cg_steps=1)  # G needs no solution
            return h_kv.unsqueeze(1)

        def residuals() -> Tensor:
            options = {"cg_steps": self.cg_steps, "cu_seqlens": ctx.cu_seqlens}
            return kernels.mesa_residuals(q, k, g, beta, self._lamb(), **options)

        ctx.record(
            "recurrence", lambda: recurrence_values(ctx, states, inputs, log_decay=g[:, :, None, :, None])
        )
        ctx.record("solver", lambda: {"residuals": residuals()})

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log γ and β, [B, T, H], in at least fp32."""
        beta = torch.sigmoid(fp32_linear(x, self.beta_proj.weight) + self.beta_proj.bias)
        return self.gamma_proj(x) + torch.log1p(-FORGETTING * beta.square()), beta


register_event("solver", residuals="[steps + 1, B, T, H]: ‖q − (H + Λ)x‖ / ‖q‖ after so many steps")


@register_measure
class Solver(Measure):
    """How well the systems (H + Λ)·x = q are solved:

    * cg_residual: ‖q − (H + Λ)·x‖ / ‖q‖ after 0, 1 … steps of the conjugate gradient, axis step, mean over tokens
    * cg_unsolved: the share of tokens that have more than 1e-4 of it left after the last step
    """

    name = "solver"
    kinds = ("solver",)
    warns_of = "mesanet"

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Rows of every head: a bucket [step, step + 1) for each step, and the share that is not solved."""
        all_steps = event.values["residuals"].detach().double()
        count = all_steps[0, ..., 0].numel()
        for step, residuals in enumerate(all_steps):
            where = {"axis": "step", "start": step, "end": step + 1}
            yield from by_head(event, "cg_residual", residuals.mean((0, 1)), count, **where)
        unsolved = ~(all_steps[-1] <= SOLVED)  # NaN is not solved
        yield from by_head(event, "cg_unsolved", unsolved.double().mean((0, 1)), count)

    @classmethod
    def notices(cls, rows: list[Row]) -> Iterator[str]:
        """One sentence where tokens are not solved."""
        left = [row for row in rows if row.measure == "cg_unsolved" and row.value > 0]
        if left:
            layers = ", ".join(str(layer) for layer in sorted({row.layer for row in left}))
            steps = max(row.start for row in rows if row.measure == "cg_residual")
            yield (
                f"mesanet: {steps:.0f} steps of its solver leave tokens of layers {layers} unsolved, up to "
                f"{max(row.value for row in left):.2g} of a head's (relative residual above {SOLVED:g}): their outputs "
                "may be wrong by 1e-3 and more; model.mixers.mesanet.cg_steps takes more steps"
            )
