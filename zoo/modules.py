"""Small parts that several blocks share: the norm, the output projection, the dimensions every block is told."""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UserError

NORM_EPS = 1e-6
INIT_STD = 0.02


@dataclasses.dataclass(frozen=True)
class Dims:
    """What a block is told about the model it is part of.

    d_model: width; n_heads: the model's heads; seq_len: the *configured* length T (rules such as k = T/8 use it,
    never the batch's length, so that decoding agrees with training); layer: index of the layer, from 0;
    depth: number of layers; backend: kernels' backend ("auto" picks by device and shape).
    """

    d_model: int
    n_heads: int
    seq_len: int
    layer: int
    depth: int
    backend: str = "auto"

    @property
    def step_backend(self) -> str:
        """Attention's backend in a step of decoding: those for packed sequences leave it to "auto".

        They want keys and values of all sequences in one row, and would copy a whole cache for every token; and they
        do not know the forms that only a step has (MLA's absorbed rows, path_step).
        """
        return "auto" if self.backend in ("varlen", "flash_attn") else self.backend


class RMSNorm(nn.Module):
    """y = x · rsqrt(mean(x²) + 1e-6) ⊙ gain over the last axis, computed in at least fp32, returned in x's dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), self.weight.shape, self.weight.to(wide), NORM_EPS).to(x.dtype)


class OutputProjection(nn.Linear):
    """A projection back into the residual stream; its own class because it starts smaller (std 0.02/√(2N))."""


class Gate(nn.Linear):
    """σ(x·W + b) with b = 0.5 and W Xavier-uniform of gain 0.1, so that a new gate is nearly constant."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out, bias=True)

    def init_weights(self, generator: torch.Generator) -> None:
        nn.init.xavier_uniform_(self.weight, gain=0.1, generator=generator)
        nn.init.constant_(self.bias, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(super().forward(x))


def output_std(depth: int) -> float:
    """The standard deviation with which output projections of a model of N layers start: 0.02/√(2N)."""
    return INIT_STD / math.sqrt(2 * depth)


def l2norm(x: Tensor) -> Tensor:
    """x · rsqrt(Σx² + 1e-6) over the last axis, computed in at least fp32, returned in x's dtype."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + NORM_EPS)).to(x.dtype)


def fp32_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x·Wᵀ in at least fp32 whatever autocast says: for routing logits, gates and decays."""
    wide = torch.promote_types(x.dtype, torch.float32)
    if x.is_meta or not torch.is_autocast_enabled(
        x.device.type
    ):  # the meta device has no autocast to switch off
        return F.linear(x.to(wide), weight.to(wide))
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(wide), weight.to(wide))


def at_least_one(value: int | None, what: str) -> None:
    """Refuse a size below one; None stands for a default. Raises UserError."""
    if value is not None and value < 1:
        raise UserError(f"{what}={value} must be at least 1")


def head_width(d_model: int, n_heads: int, what: str) -> int:
    """d_model / n_heads. Raises UserError where heads do not divide the width."""
    if n_heads < 1 or d_model % n_heads:
        fits = [h for h in range(1, d_model + 1) if d_model % h == 0 and (d_model // h) % 2 == 0][-8:]
        advice = f"choose a divisor, e.g. one of {fits}" if fits else "choose an even model.d_model"
        raise UserError(f"{what}={n_heads} does not divide model.d_model={d_model}; {advice}")
    return d_model // n_heads


def third(heads: int) -> int:
    """The most KV heads that divide the heads and are at most a third of them; at least 1."""
    return max(n for n in range(1, max(1, heads // 3) + 1) if heads % n == 0)


def even_width(width: int, what: str) -> int:
    """The head width, refused where rotary positions, which turn pairs of channels, cannot use it."""
    if width % 2:
        raise UserError(
            f"{what}: head width {width} is odd, and rotary positions rotate pairs; use an even width"
        )
    return width


def positive(value: float, what: str) -> None:
    """Raise UserError for a value that is not a finite number above 0."""
    if not 0 < value < float("inf"):
        raise UserError(f"{what}={value} must be a number above 0")
