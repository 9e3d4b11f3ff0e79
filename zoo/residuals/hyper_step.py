"""One token of a residual scheme with several streams, on a CPU, in few operations.

Decoding calls a scheme twice a layer for every token. On a CPU the general operations take most of their time to
start, many times what their arithmetic takes; these forms are the same equations with everything that parameters
determine computed beforehand.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.checks import autocasts


class StepWeights(NamedTuple):
    """mα·φ [rows, nD] and b [rows], rows those of H_pre, H_post and H_res."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def of(phi: Tensor, scale: Tensor, bias: Tensor, n: int) -> StepWeights:
        """From φ [2n + m, nD], mα [3] and b [2n + m]."""
        rows = torch.cat([s.expand(k) for s, k in zip(scale, (n, n, len(phi) - 2 * n), strict=True)])
        return StepWeights(rows[:, None] * phi, bias)


def takes_step(x: Tensor, backend: str) -> bool:
    """Whether streams x [B, T, n, D] are one token that these forms serve."""
    return (
        x.shape[1] == 1
        and not torch.is_grad_enabled()
        and x.device.type == "cpu"
        and backend in ("auto", "torch")
        and x.dtype in (torch.float32, torch.float64)
        and not autocasts(x)
    )


def step_logits(x: Tensor, weights: StepWeights, eps: float) -> Tensor:
    """mα·x̂φ + b [B, 1, rows] of streams x [B, 1, n, D]."""
    flat = x.flatten(-2)
    norm = torch.linalg.vector_norm(flat, dim=-1, keepdim=True)
    inverse = torch.rsqrt(norm.square() / flat.shape[-1] + eps)
    return torch.addcmul(weights.bias, F.linear(flat, weights.weight), inverse)


def step_read(x: Tensor, h_pre: Tensor) -> Tensor:
    """y = H_pre·x: streams [B, 1, n, D] and h_pre [B, 1, n] -> [B, 1, D]."""
    return torch.matmul(h_pre.unsqueeze(-2), x).squeeze(-2)


def step_write(x: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor) -> Tensor:
    """H_res·x + H_postᵀ·z: streams [B, 1, n, D] and z [B, 1, D] -> [B, 1, n, D]."""
    return torch.addcmul(torch.matmul(h_res, x), h_post.unsqueeze(-1), z.unsqueeze(-2))


def step_cayley(raw: Tensor) -> Tensor:
    """Cayley(raw) = 2·(I + A)⁻¹ − I for A = (raw − rawᵀ)/2, [..., n, n]: three operations for a few matrices."""
    eye = torch.eye(raw.shape[-1], dtype=raw.dtype)
    inverse = torch.linalg.inv_ex(torch.add(eye, raw - raw.mT, alpha=0.5)).inverse
    return torch.sub(2 * inverse, eye)
