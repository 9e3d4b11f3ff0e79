"""The lightning indexer of gated sparse attention, and the warm-up during which attention is still dense."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from kernels.dispatch import in_autocast_dtype
from zoo.interfaces import ParameterGroup, StepBuffer
from zoo.modules import fp32_linear


class Indexer(nn.Module):
    """x [B, T, D] -> q^I [B, T, H^I, d_I], k^I [B, T, d_I], w [B, T, H^I], b [H^I].

    In at least fp32; q^I and k^I under autocast in its dtype. x is detached. rope_base: None, or that of rotary
    positions on q^I and k^I. scores: as in `kernels.lightning_topk`:

        sigmoid   w = σ(x·W_Iw), b and log_tau = log τ learned; the loss multiplies the bounded scores by τ, which
                  starts at 10
        relu      w = x·W_Iw/√H^I of any sign, b = 0, τ = 1 (log_tau None), as in DeepSeek-V3.2: its scores are
                  unbounded and need no τ
    """

    parameter_group = ParameterGroup("indexer", lr_scale=10.0)

    def __init__(
        self, d_model: int, heads: int, width: int, rope_base: float | None = None, scores: str = "sigmoid"
    ) -> None:
        super().__init__()
        self.heads, self.width, self.rope_base, self.scores = heads, width, rope_base, scores
        self.q_proj = nn.Linear(d_model, heads * width, bias=False)
        self.k_proj = nn.Linear(d_model, width, bias=False)
        self.w_proj = nn.Linear(d_model, heads, bias=False)
        gated = scores == "sigmoid"
        self.bias = nn.Parameter(torch.zeros(heads)) if gated else None
        self.log_tau = nn.Parameter(torch.tensor(math.log(10.0))) if gated else None

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw W_QI and W_KI from the generator, Xavier-uniform with gain 1."""
        for projection in (self.q_proj, self.k_proj):
            nn.init.xavier_uniform_(projection.weight, generator=generator)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [B, T, D], positions int64 [B, T] -> q^I, k^I, w, b, as the class describes."""
        q, k, w = self.projections(x.detach())
        q, k = q.unflatten(-1, (self.heads, self.width)), k.unsqueeze(-2)
        if self.rope_base is not None:
            q, k = kernels.rope_each((q, k), positions, self.rope_base)
        # What is multiplied T² times is as precise as attention's own queries and keys; sums of products stay fp32.
        q, k = in_autocast_dtype(q, k.squeeze(-2))
        return q, k, self.weights(w), self.offsets()

    def projections(self, x: Tensor) -> tuple[Tensor, ...]:
        """x·W_QI [B, T, H^I·d_I], x·W_KI [B, T, d_I], x·W_Iw [B, T, H^I] as one product, which reads x once."""
        linears = (self.q_proj, self.k_proj, self.w_proj)
        weight = torch.cat([linear.weight for linear in linears])
        return fp32_linear(x, weight).split([linear.out_features for linear in linears], -1)

    def weights(self, w: Tensor) -> Tensor:
        """The heads' weights [..., H^I] from x·W_Iw."""
        return w * self.heads**-0.5 if self.bias is None else torch.sigmoid(w)

    def offsets(self) -> Tensor:
        """b [H^I]; 0 for ReLU scores."""
        return self.w_proj.weight.new_zeros(self.heads) if self.bias is None else self.bias

    def tau(self) -> Tensor:
        """τ [], by which the loss multiplies the scores."""
        return self.w_proj.weight.new_ones(()) if self.log_tau is None else self.log_tau.exp()


class Warmup(StepBuffer):
    """dense: whether the warm-up is on; it takes `steps` steps or a tenth of the training, whichever is shorter.

    A Python bool, so that a compiled model holds one of the two branches. On the meta device, where cost is counted
    and there is no step, the warm-up is over.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.dense = steps > 0 and not self.step.is_meta
        self.register_load_state_dict_post_hook(_set_from_buffers)

    def set(self, step: int, total: int) -> None:
        """Count the step, and end dense attention where the warm-up is over."""
        super().set(step, total)
        self.dense = step < (min(self.steps, total // 10) if total else self.steps)


def _set_from_buffers(loaded: Warmup, _keys: Any) -> None:
    loaded.set(int(loaded.step), int(loaded.total))
