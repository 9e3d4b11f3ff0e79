"""Linear recurrences by matrix products: no loop over time, and no exponent above 0."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 16
"""Steps that one product joins. Work a step is linear in it, depth falls with its logarithm."""


def pair_sums(gates: Tensor) -> Tensor:
    """Return Σ gates from s+1 to t at [..., t, s] for s ≤ t, −inf for s > t: [..., n] -> [..., n, n].

    Every pair is summed by itself: the difference of two sums from the start would lose a small gate that
    follows large ones, and would be NaN after a gate of −inf.
    """
    size = gates.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=gates.device).tril(-1)
    sums = torch.where(later, gates.unsqueeze(-1), 0).cumsum(-2)
    return torch.where(later.mT, -torch.inf, sums)


def scan(writes: Tensor, gates: Tensor, before: Tensor) -> Tensor:
    """Return s_c = exp(gate_c)·s_{c−1} + write_c for every c, from s_{−1} = before.

    writes [..., n, F]; gates [..., n], log, ≤ 0; before [..., F] -> [..., n, F]
    """
    steps = gates.shape[-1]
    if steps <= GROUP:
        return pair_sums(gates).exp() @ writes + _left(gates) * before.unsqueeze(-2)
    spare = -steps % GROUP
    writes = F.pad(writes, (0, 0, 0, spare)).unflatten(-2, (-1, GROUP))
    gates = F.pad(gates, (0, spare)).unflatten(-1, (-1, GROUP))
    own = pair_sums(gates).exp() @ writes
    ends = scan(own[..., -1, :], gates.sum(-1), before)
    starts = torch.cat([before.unsqueeze(-2), ends[..., :-1, :]], -2)
    return (own + _left(gates) * starts.unsqueeze(-2)).flatten(-3, -2)[..., :steps, :]


def _left(gates: Tensor) -> Tensor:
    """The decay from before the first step to after each, [..., n, 1]."""
    return gates.cumsum(-1).exp().unsqueeze(-1)
