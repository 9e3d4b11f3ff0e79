"""The learned log decay of linear recurrences."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

A_RANGE = (1.0, 16.0)
DT_RANGE = (1e-3, 0.1)


class LogDecay(nn.Module):
    """g = −exp(A_log)·softplus(x + dt_bias) ≤ 0 in nats, in at least fp32; x [..., *shape] -> g [..., *shape].

    A_log has the shape `rates`, which broadcasts to `shape`, and starts as log U(1, 16); dt_bias has `shape` and
    starts as softplus⁻¹ of dt, log-uniform on [1e-3, 0.1]: at x = 0 a new module has −g from 0.001 to 1.6.
    """

    def __init__(self, rates: tuple[int, ...], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.empty(rates))
        self.dt_bias = nn.Parameter(torch.empty(shape))
        self.init_weights(None)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw A_log and dt_bias from the generator, as the class describes."""
        self.A_log.uniform_(*A_RANGE, generator=generator).log_()
        self.dt_bias.uniform_(*(math.log(dt) for dt in DT_RANGE), generator=generator).exp_().expm1_().log_()

    def forward(self, x: Tensor) -> Tensor:
        """x [..., *shape] -> g [..., *shape] ≤ 0, in at least fp32."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return -self.A_log.to(wide).exp() * F.softplus(x.to(wide) + self.dt_bias)
