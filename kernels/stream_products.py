"""Products of a token's few streams, in the forms that are fast on a CPU.

A matrix of 4 × 64 a token is too small for BLAS: thousands of such products take two to ten times as long as
elementwise passes over the same numbers. Elsewhere they are batched products, which a GPU runs as one kernel and the
FLOP counter, on the meta device, counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

NARROW = 64
"""Widths up to which MKL multiplies rows by rows several times slower than rows by columns."""


def weighted_sum(weights: Tensor, x: Tensor) -> Tensor:
    """Return Σ_i weights_i·x_i: [..., n], [..., n, D] -> [..., D]."""
    if x.device.type != "cpu":
        return (weights.unsqueeze(-2) @ x).squeeze(-2)
    parts = [(weights[..., i, None], x[..., i, :]) for i in range(x.shape[-2])]
    total = parts[0][0] * parts[0][1]
    for weight, row in parts[1:]:
        total = torch.addcmul(total, weight, row)
    return total


def spread(weights: Tensor, y: Tensor, onto: Tensor | None = None) -> Tensor:
    """Return weights_i·y: [..., n], [..., D] -> [..., n, D], added to `onto` if there is one."""
    weights, y = weights.unsqueeze(-1), y.unsqueeze(-2)
    if onto is not None:
        return torch.addcmul(onto, weights, y)
    return weights * y if y.device.type == "cpu" else weights @ y


def row_products(x: Tensor, y: Tensor) -> Tensor:
    """Return x_i·y: [..., n, D], [..., D] -> [..., n]."""
    if x.device.type == "cpu":
        return torch.linalg.vecdot(x, y.unsqueeze(-2))
    return (x @ y.unsqueeze(-1)).squeeze(-1)


def pair_products(x: Tensor, y: Tensor) -> Tensor:
    """Return x_i·y_j: [..., n, D] twice -> [..., n, n]."""
    columns = y.mT
    return x @ (columns.contiguous() if x.device.type == "cpu" and x.shape[-1] <= NARROW else columns)
