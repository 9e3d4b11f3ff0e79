"""`moe`: a mixture of SwiGLU experts, balanced without an auxiliary loss; no token is ever dropped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from zoo.channels.swiglu import SwiGLU, SwiGLUConfig, default_hidden
from zoo.context import Context
from zoo.errors import UserError
from zoo.interfaces import Aux, Channel, Dims, StepBuffer
from zoo.modules import INIT_STD, fp32_linear, output_std
from zoo.options import added, at_least, one_of
from zoo.registry import register_channel

# Sorting tokens by expert, and balancing their load by biases of the routing.


class LoadBalance(StepBuffer):
    """Routing biases that even out the experts' loads without a loss.

        b_e ← b_e + rate · sign(mean count − count_e)     once per optimiser step

    bias    fp32 [E], added to affinities to choose experts, never to weigh them
    counts  int64 [E], assignments since the last optimiser step, over all its micro-batches

    Both are part of checkpoints. Counts are added up over all processes, so that all hold the same biases.
    Source: auxiliary-loss-free load balancing (arXiv:2408.15664), algorithm 1.
    """

    def __init__(self, experts: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("counts", torch.zeros(experts, dtype=torch.int64))

    def count(self, counts: Tensor) -> None:
        """Add the assignments [E] of a micro-batch."""
        self.counts += counts

    def set(self, step: int, total: int) -> None:
        """Update the biases from the counts of all processes, then reset the counts."""
        super().set(step, total)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(self.counts)
        loads = self.counts.to(self.bias.dtype)
        self.bias += self.rate * torch.sign(loads.mean() - loads)
        self.counts.zero_()


def order_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort assignments by expert, stably.

    chosen   int64 [..., k], the experts of every token
    returns  order int64 [M], M = all assignments: the assignment at every place of the sorted list; places
             int64 [M], its inverse; counts int64 [experts]. Shapes follow from the argument's: it can be traced
    """
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    rank = torch.arange(flat.shape[0], device=flat.device)
    places = torch.empty_like(order).scatter(0, order, rank)
    ones = torch.ones_like(flat)
    counts = torch.zeros(experts, dtype=torch.int64, device=flat.device).scatter_add(0, flat, ones)
    return order, places, counts


# The channel mixer.

SCORES = ("sigmoid", "softmax")


@dataclass
class MoEConfig:
    """Options of the mixture of experts.

    n_experts: routed experts; top_k: routed experts per token; n_shared: shared experts, which every token uses;
    hidden: inner width of an expert (None: the plain SwiGLU's divided by top_k + n_shared and rounded up to a multiple
    of 8, so that a token costs as much as in the plain SwiGLU); scale: factor of the routed experts' output; scores:
    affinities by "sigmoid", or "softmax" over the experts; renormalise: make the weights of the chosen experts sum to 1
    (not for top_k=1); groups: number of equal groups of experts; a token uses experts of its top_groups highest-scoring
    groups only; top_groups: number of groups a token uses (None: all, for groups=1); balance_rate: change of an
    expert's routing bias per step (0: none); aux_weight: weight of the balance loss in training.
    """

    n_experts: int = 8
    top_k: int = 2
    n_shared: int = 1
    hidden: int | None = None
    scale: float = 1.0
    balance_rate: float = 1e-3
    aux_weight: float = 0.0
    scores: str = added("sigmoid", before="sigmoid")
    renormalise: bool = added(True, before=True)
    groups: int = added(1, before=1)
    top_groups: int | None = added(None, before=None)


@register_channel(
    "moe",
    config=MoEConfig,
    title="Mixture of experts",
    family="sparse",
    source="DeepSeekMoE (arXiv:2401.06066); DeepSeek-V2 (arXiv:2405.04434), section 2.2; DeepSeek-V3 "
    "(arXiv:2412.19437), equations 12 to 20",
    choice="expert",
)
class MoE(Channel):
    """y = Σ_shared FFN_j(x) + scale · Σ_{e ∈ top-k} w_e · FFN_e(x), every FFN a SwiGLU; x [B, T, D].

        s_e = σ(x·u_e), or softmax_e(x·u_e)   affinity, in at least fp32
        open = the groups with the largest score, by option: all experts otherwise
        chosen = the k experts with the largest s_e + b_e in them
        w_e = s_e / Σ_chosen s                (k = 1: w_e = s_e, or the router would have no gradient; so by option)

    A group's score is the sum of its two largest s_e + b_e with sigmoid scores, as in DeepSeek-V3, and its largest with
    softmax, as in DeepSeek-V2.
    After a step b_e rises by balance_rate where an expert had fewer tokens than the mean and falls where it
    had more; it decides who is chosen and nothing else. Auxiliary loss `expert_balance`, per sequence, then
    averaged: E·Σ_e f_e·p_e, f_e the share of the k·T assignments, p_e the mean of s_e / Σ s; 1 when balanced.
    It is computed even where its weight is 0.
    """

    decays = ("gate", "up", "down")

    def __init__(self, config: MoEConfig, dims: Dims) -> None:
        super().__init__()
        _check(config)
        self.config, self.backend, self.output_std = config, dims.backend, output_std(dims.depth)
        self.body_backend = dims.body_backend
        experts, width, hidden = config.n_experts, dims.d_model, expert_hidden(config, dims.d_model)
        self.aux_weights = {"expert_balance": config.aux_weight}
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.Parameter(torch.empty(experts, hidden, width))
        self.up = nn.Parameter(torch.empty(experts, hidden, width))
        self.down = nn.Parameter(torch.empty(experts, width, hidden))
        self.shared = SwiGLU(SwiGLUConfig(config.n_shared * hidden), dims) if config.n_shared else None
        self.balance = LoadBalance(experts, config.balance_rate)

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw the experts' weights: down starts smaller, as output projections do."""
        for weight, std in ((self.gate, INIT_STD), (self.up, INIT_STD), (self.down, self.output_std)):
            nn.init.normal_(weight, std=std, generator=generator)

    def forward(self, x: Tensor, ctx: Context | None = None) -> tuple[Tensor, Aux]:
        """x [B, T, D] -> (y [B, T, D], {"expert_balance": scalar}; no losses without a context)."""
        logits = fp32_linear(x, self.router.weight)
        affinity = logits.softmax(-1) if self.config.scores == "softmax" else torch.sigmoid(logits)
        chosen = self._open(affinity + self.balance.bias).topk(self.config.top_k, -1).indices
        weights = affinity.gather(-1, chosen)
        if self.config.renormalise and self.config.top_k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        if ctx is not None:
            ctx.record("routing", lambda: _routing_values(affinity, chosen))
        counting = self.training and not (ctx is not None and ctx.repeated)
        y = self._routed(x, chosen, self.config.scale * weights, counting)
        if self.shared is not None:
            y = y + self.shared(x)[0]
        return y, {} if ctx is None else {"expert_balance": self._balance_loss(affinity, chosen, ctx)}

    def _open(self, scores: Tensor) -> Tensor:
        """The scores [..., E] by which experts are chosen, −∞ in groups that are closed to the token."""
        c = self.config
        if c.top_groups in (None, c.groups):
            return scores
        grouped = scores.unflatten(-1, (c.groups, -1))
        best = grouped.topk(min(2 if c.scores == "sigmoid" else 1, grouped.shape[-1]), -1).values.sum(-1)
        closed = torch.ones_like(best, dtype=torch.bool).scatter(
            -1, best.topk(c.top_groups, -1).indices, False
        )
        return grouped.masked_fill(closed.unsqueeze(-1), -torch.inf).flatten(-2)

    def _routed(self, x: Tensor, chosen: Tensor, weights: Tensor, counting: bool) -> Tensor:
        """Σ_e w_e·FFN_e(x) [B, T, D], computed on copies of the tokens sorted by expert."""
        k = self.config.top_k
        order, places, counts = order_by_expert(chosen, self.config.n_experts)
        if counting:
            self.balance.count(counts)
        # Copy, then permute: both have gradients that add in a fixed order, on GPUs too.
        rows = x.flatten(0, -2).repeat_interleave(k, 0).index_select(0, order)
        gate, up = (self._experts(rows, weight, counts) for weight in (self.gate, self.up))
        out = self._experts(kernels.swiglu(gate, up, backend=self.body_backend), self.down, counts)
        out = out.index_select(0, places).unflatten(0, chosen.shape)
        return (weights.to(out.dtype).unsqueeze(-1) * out).sum(-2)

    def _experts(self, rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        return kernels.grouped_linear(rows, weight, counts, backend=self.backend)

    def _balance_loss(self, affinity: Tensor, chosen: Tensor, ctx: Context) -> Tensor:
        experts = self.config.n_experts
        share = ctx.sequence_mean(F.one_hot(chosen, experts).to(affinity.dtype).mean(-2))
        mean = ctx.sequence_mean(affinity / affinity.sum(-1, keepdim=True))
        return experts * (share * mean).sum(-1).mean()


def expert_hidden(config: MoEConfig, d_model: int) -> int:
    """The inner width of one expert."""
    if config.hidden is not None:
        return config.hidden
    return -(-default_hidden(d_model) // (8 * (config.top_k + config.n_shared))) * 8


def _routing_values(affinity: Tensor, chosen: Tensor) -> dict[str, Tensor]:
    """The tensors of a "routing" event, one head: the affinities' shares, and the chosen experts, best first."""
    shares = affinity / affinity.sum(-1, keepdim=True)
    return {"probabilities": shares.unsqueeze(2), "choices": chosen.unsqueeze(2)}


def _check(config: MoEConfig) -> None:
    if not 1 <= config.top_k <= config.n_experts:
        raise UserError(f"moe.top_k={config.top_k} must lie between 1 and moe.n_experts={config.n_experts}")
    one_of(config.scores, SCORES, "moe.scores")
    at_least(config.groups, 1, "moe.groups")
    if config.n_experts % config.groups:
        raise UserError(f"moe.groups={config.groups} does not divide moe.n_experts={config.n_experts}")
    if config.groups > 1 and config.top_groups is None:
        raise UserError(f"moe.groups={config.groups} needs moe.top_groups, how many of them a token may use")
    size, top = (
        config.n_experts // config.groups,
        config.groups if config.top_groups is None else config.top_groups,
    )
    if not 1 <= top <= config.groups:
        raise UserError(f"moe.top_groups={top} must lie between 1 and moe.groups={config.groups}")
    if config.top_k > top * size:
        raise UserError(
            f"moe.top_k={config.top_k} exceeds the {top * size} experts of moe.top_groups={top} groups; "
            "lower moe.top_k or raise moe.top_groups"
        )
    at_least(config.n_shared, 0, "moe.n_shared")
    at_least(config.hidden, 1, "moe.hidden")
    at_least(config.balance_rate, 0, "moe.balance_rate")
