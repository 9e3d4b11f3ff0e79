"""One token of a residual scheme with several streams on a CPU: its coefficients as Python's numbers.

Decoding asks a scheme for coefficients twice a layer and token. They are a few dozen numbers, and an operation on a
tensor takes longer to start than Python takes for all of them; what is as wide as the model stays in tensors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import autocasts

MOST_SEQUENCES = 8
"""The largest batch whose coefficients are computed one sequence after another."""


class StepWeights(NamedTuple):
    """mα·φ [rows, nD] and b [rows], the rows those of H_pre, H_post and H_res."""

    weight: Tensor
    bias: list[float]

    @staticmethod
    def of(phi: Tensor, scale: Tensor, bias: Tensor, n: int) -> StepWeights:
        """From φ [2n + m, nD], mα [3] and b [2n + m]."""
        rows = torch.cat([s.expand(k) for s, k in zip(scale, (n, n, len(phi) - 2 * n), strict=True)])
        return StepWeights(rows[:, None] * phi, bias.tolist())

    def logits(self, x: Tensor, eps: float) -> list[list[float]]:
        """mα·x̂φ + b of the streams x [B, 1, n, D] of every sequence: B lists of as many numbers as rows."""
        flat = x.flatten(1)
        products, norms = F.linear(flat, self.weight), torch.linalg.vector_norm(flat, dim=-1)
        inverse = [1 / math.sqrt(norm * norm / flat.shape[1] + eps) for norm in norms.tolist()]
        return [
            [r * y + b for y, b in zip(row, self.bias, strict=True)]
            for r, row in zip(inverse, products.tolist(), strict=True)
        ]


def takes_step(x: Tensor, backend: str) -> bool:
    """Return whether the streams x [B, T, n, D] are one token of a few sequences that these forms serve."""
    return (
        x.shape[1] == 1
        and len(x) <= MOST_SEQUENCES
        and not torch.is_grad_enabled()
        and x.device.type == "cpu"
        and backend in ("auto", "torch")
        and x.dtype in (torch.float32, torch.float64)
        and not autocasts(x)
    )


def sigmoids(logits: list[float]) -> list[float]:
    """σ of every number; through tanh, which does not overflow."""
    return [0.5 + 0.5 * math.tanh(0.5 * y) for y in logits]


def read(x: Tensor, h_pre: Tensor) -> Tensor:
    """y = H_pre·x: streams [B, 1, n, D] and h_pre [B, 1, n] -> [B, 1, D]."""
    return torch.bmm(h_pre, x[:, 0])


def write(x: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor) -> Tensor:
    """H_res·x + H_postᵀ·z: streams [B, 1, n, D] and z [B, 1, D] -> [B, 1, n, D]."""
    mixed = torch.bmm(h_res[:, 0], x[:, 0])
    return torch.addcmul(mixed, h_post.mT, z).unsqueeze(1)
