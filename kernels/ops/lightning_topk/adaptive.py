"""The number of keys that a query selects, adapted to the variance of its scores."""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor

RULES = ("none", "seed", "inverse")


@dataclasses.dataclass(frozen=True)
class AdaptiveK:
    """A rule v -> k, for v the population variance of I_ts/H^I over the keys that query t sees (0 for one key).

        none     k = base
        seed     k = clip(base·(1 + beta·softplus(v)), least, most)       grows with v, from base·(1 + 0.69·beta)
        inverse  k = clip(base·√(reference/v), least, most)               fewer keys where scores discriminate

    rounded to the nearest integer; of a v that is NaN, seed and inverse give the most. For sigmoid scores 0 ≤ v ≤ ¼,
    of which `inverse` reaches both limits, and `reference` is made for them; for ReLU scores v has no bound, and any
    other rule needs a reference or beta of its own. Raises ValueError for an unknown rule and for sizes that are not
    1 ≤ least ≤ base ≤ most.
    """

    rule: str
    base: int
    least: int
    most: int
    beta: float = 1.0
    reference: float = 0.003

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"the rule of AdaptiveK is one of {', '.join(RULES)}, not {self.rule!r}")
        if not 1 <= self.least <= self.base <= self.most:
            raise ValueError(
                f"AdaptiveK needs 1 ≤ least ≤ base ≤ most, got {self.least}, {self.base}, {self.most}"
            )

    @property
    def widest(self) -> int:
        """The largest k that the rule gives."""
        return self.base if self.rule == "none" else self.most

    def __call__(self, variance: Tensor) -> Tensor:
        """The number of keys k, int64 [...], for a variance [...] in at least fp32."""
        if self.rule == "none":
            return torch.full_like(variance, self.base, dtype=torch.int64)
        if self.rule == "seed":
            k = self.base * (1 + self.beta * F.softplus(variance))
        else:
            k = self.base * torch.sqrt(self.reference / variance)
        return k.clamp(self.least, self.most).round().nan_to_num(self.most).to(torch.int64)

    def of_number(self, variance: float) -> int:
        """The number of keys for one variance: a decoding step has one, and tensors of one number are slow."""
        k = float(self.base)
        if self.rule == "seed":
            k *= 1 + self.beta * (variance + math.log1p(math.exp(-variance)))  # softplus, of a number ≥ 0
        elif self.rule == "inverse":
            k = k * math.sqrt(self.reference / variance) if variance > 0 else math.inf
        return (
            self.base if self.rule == "none" else round(max(min(self.most, k), self.least))
        )  # of NaN the most
