"""`O`: a mixture of memories, each a delta rule over the tokens that a router sends to it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from zoo.context import Context
from zoo.errors import UserError
from zoo.interfaces import Aux, Dims, Mixer
from zoo.modules import (
    LogDecay,
    OutputProjection,
    RMSNorm,
    fp32_linear,
    fp32_linears,
    joined,
    joins,
    l2norm,
    project,
)
from zoo.options import added, at_least, one_of
from zoo.probes.events import recurrence_values
from zoo.registry import register_mixer

UPDATES = ("gated_delta", "gated_linear", "linear")


@dataclass
class MoMConfig:
    """Options of the mixture of memories.

    n_heads: heads of every memory (None: a sixth of the model's, at least 1); head_width: K, width of a head (None: a
    multiple of 8 by which they are together a third of the model's width, so that five memories cost as much as
    attention); n_memories: routed memories; top_k: how many of them a token writes to and reads; shared: one more
    memory that every token uses, with weight 1; neg_eigval: β in (0, 2), as in kda; aux_weight: weight of the balance
    loss; update: how a memory changes, "gated_delta" (the gated delta rule), "gated_linear" (gated linear attention:
    without the delta term) or "linear" (linear attention: neither decay nor β).
    """

    n_heads: int | None = None
    head_width: int | None = None
    n_memories: int = 4
    top_k: int = 2
    shared: bool = True
    neg_eigval: bool = False
    aux_weight: float = 0.01
    update: str = added("gated_delta", before="gated_delta")


@register_mixer(
    "mom",
    letter="O",
    config=MoMConfig,
    title="Mixture of memories",
    family="linear recurrence",
    color="#D55E00",
    mask="memories",
    source="Du et al. 2025, MoM (arXiv:2502.13685); update: Yang et al. 2024 (arXiv:2412.06464)",
    choice="memory",
    sketch="""
    x
    router | q | k, v, β, g
    S₁ ↻ #0 | S₂ ↻ #1 | S₃ ↻ #2
    weighted sum of reads
    y
    """,
)
class MoM(Mixer):
    """A state for every memory; a token changes and reads the few it is routed to. Memory m, a head of width K:

        p = softmax(x·W_r) [B, T, M];  I = the k largest;  w_m = p_m / Σ_{i ∈ I} p_i (p_m itself for k = 1)
        q = L2norm(SiLU(x·W_q)) for all;  k_m = L2norm(SiLU(x·W_k,m));  v_m = SiLU(x·W_v,m)
        β_m = σ(x·W_β,m), or twice that;  g_m = −exp(A_log)·softplus(x·W_g,m + dt_bias), one number a head
        S_m ← exp(g_m)·(I − β_m·k_m·k_mᵀ)·S_m + β_m·k_m·v_mᵀ for m ∈ I and the shared one; others stay as they are
              exp(g_m)·S_m + β_m·k_m·v_mᵀ with update=gated_linear, S_m + k_m·v_mᵀ with update=linear
        o = K^(−½)·(S_sharedᵀ·q + Σ_{m ∈ I} w_m·S_mᵀ·q)                                   [B, T, H, K]
        y = RMSNorm(o)·W_o                                  the norm per head, one gain for all

    Auxiliary loss `memory_balance`, per sequence, then averaged: M·Σ_m f_m·p̄_m, f_m the share of the k·T assignments,
    p̄_m the mean of p_m; 1 when balanced. With one memory there is no router and no loss. No positions, no
    convolution. Decode state: all S_m, [B, M (+1), H, K, K], constant in T.
    """

    state_options = ("head_width",)
    context_parallel = True

    def __init__(self, config: MoMConfig, dims: Dims) -> None:
        super().__init__()
        self._sizes(config, dims)
        self.top_beta = 2.0 if config.neg_eigval else 1.0
        self.backend = dims.backend
        self.update = "gated_delta" if config.update == "gated_delta" else "gated_linear"
        self.gated = config.update != "linear"
        inner = self.heads * self.width
        total = self.memories + self.shared
        self.router = nn.Linear(dims.d_model, self.memories, bias=False) if self.memories > 1 else None
        self.aux_weights = {} if self.router is None else {"memory_balance": config.aux_weight}
        self.q_proj = nn.Linear(dims.d_model, inner, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(dims.d_model, total * inner, bias=False) for _ in range(2))
        self.beta_proj, self.decay_proj = (
            nn.Linear(dims.d_model, total * self.heads, bias=False) if self.gated else None for _ in range(2)
        )
        self.decay = LogDecay((total, self.heads), (total, self.heads)) if self.gated else None
        self.o_norm = RMSNorm(self.width, dims.norm_eps)
        self.o_proj = OutputProjection(inner, dims.d_model, bias=False)

    def _sizes(self, config: MoMConfig, dims: Dims) -> None:
        for key in ("n_heads", "head_width"):
            at_least(getattr(config, key), 1, f"mom.{key}")
        self.heads = max(1, round(dims.n_heads / 6)) if config.n_heads is None else config.n_heads
        default = max(1, round(dims.d_model / (3 * self.heads) / 8)) * 8
        self.width = default if config.head_width is None else config.head_width
        self.memories, self.top_k, self.shared = config.n_memories, config.top_k, int(config.shared)
        if not 1 <= self.top_k <= self.memories:
            raise UserError(f"mom.top_k={self.top_k} must be from 1 to n_memories={self.memories}")
        one_of(config.update, UPDATES, "mom.update")
        if config.neg_eigval and config.update != "gated_delta":
            raise UserError(
                f"mom.neg_eigval needs mom.update=gated_delta: with mom.update={config.update} no "
                "eigenvalue depends on β; leave it out"
            )

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], {"memory_balance": scalar} where there is a router)."""
        p, routes, weights = self._routes(x)
        inputs = *self._inputs(x), routes, weights
        before = ctx.delta_state_before(self._mix, inputs)
        o, _ = self._mix(*inputs, initial_state=before, cu_seqlens=ctx.cu_seqlens)
        self._record(ctx, p, inputs)
        return self._out(o), {} if self.router is None else {"memory_balance": self._balance(p, routes, ctx)}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """All memories, zeros [B, M (+1), H, K, K] in at least fp32, whatever the capacity."""
        shape = (batch_size, self.memories + self.shared, self.heads, self.width, self.width)
        return torch.zeros(shape, device=device, dtype=torch.promote_types(dtype, torch.float32))

    def extend(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The next tokens: x [B, T, D] -> (y [B, T, D], the memories after them)."""
        _, routes, weights = self._routes(x)
        inputs = *self._inputs(x), routes, weights
        o, state = self._mix(*inputs, initial_state=state, output_final_state=True)
        return self._out(o), state

    def _mix(self, *inputs: Tensor, **options) -> tuple[Tensor, Tensor | None]:
        return kernels.memory_mixture(*inputs, update=self.update, backend=self.backend, **options)

    def _routes(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities [B, T, M]; the memories a token uses, the shared one last, and their weights [B, T, k (+1)]."""
        if self.router is None:
            p = x.new_ones(*x.shape[:2], 1, dtype=torch.promote_types(x.dtype, torch.float32))
        else:
            p = torch.softmax(fp32_linear(x, self.router.weight), -1)
        weights, routes = p.topk(self.top_k, -1)
        if self.top_k > 1:  # One weight, renormalised, would always be 1: the router would get no gradient.
            weights = weights / weights.sum(-1, keepdim=True)
        if self.shared:
            routes, weights = F.pad(routes, (0, 1), value=self.memories), F.pad(weights, (0, 1), value=1.0)
        return p, routes, weights

    def _inputs(self, x: Tensor) -> tuple[Tensor, ...]:
        """x [B, T, D] -> q [B, T, H, K], and for every memory k, v, g, β."""
        maps = self.q_proj, self.k_proj, self.v_proj
        if joins(x):
            heads = tuple(p.out_features // self.width for p in maps)
            q, k, v = kernels.short_conv_heads(joined(x, *maps), None, heads=heads, backend=self.backend)
            return q, *(y.unflatten(2, (-1, self.heads)) for y in (k, v)), *self._gates(x)
        q, k, v = (F.silu(y) for y in project(x, *maps))
        q = l2norm(q.unflatten(-1, (self.heads, self.width)))
        k, v = (y.unflatten(-1, (-1, self.heads, self.width)) for y in (k, v))
        return q, l2norm(k), v, *self._gates(x)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay g and write strength β of every memory and head, [B, T, M, H] in at least fp32."""
        if not self.gated:
            shape = (*x.shape[:2], self.memories + self.shared, self.heads)
            g = x.new_zeros(shape, dtype=torch.promote_types(x.dtype, torch.float32))
            return g, torch.ones_like(g)
        gates = fp32_linears(x, self.beta_proj.weight, self.decay_proj.weight)
        strength, raw = (y.unflatten(-1, (-1, self.heads)) for y in gates)
        return self.decay(raw, strength, self.top_beta, self.backend)

    def _out(self, o: Tensor) -> Tensor:
        return self.o_proj(self.o_norm.of_heads(o, None, self.backend))

    def _record(self, ctx: Context, p: Tensor, inputs: tuple[Tensor, ...]) -> None:
        """Record states and routing, p [B, T, M]; the shared memory is among the states, not the routes."""
        g, routes = inputs[3], inputs[5]

        def states(*part: Tensor) -> Tensor:
            return self._mix(*part, output_final_state=True)[1]

        def log_decay() -> Tensor:
            used = F.one_hot(routes, g.shape[2]).sum(2).unsqueeze(-1)
            return torch.where(used > 0, g, torch.nan).unsqueeze(-1)

        def choices() -> Tensor:
            return routes[..., : self.top_k].unsqueeze(2)

        ctx.record("recurrence", lambda: recurrence_values(ctx, states, inputs, log_decay()))
        if self.router is not None:
            ctx.record("routing", lambda: {"probabilities": p.unsqueeze(2), "choices": choices()})

    def _balance(self, p: Tensor, routes: Tensor, ctx: Context) -> Tensor:
        # Not F.one_hot, which on some devices reads the largest number on the host.
        memory = torch.arange(self.memories, device=routes.device)
        named = (routes[..., : self.top_k, None] == memory).to(p.dtype).sum(-2) / self.top_k
        return (self.memories * ctx.sequence_mean(named) * ctx.sequence_mean(p)).sum(-1).mean()
