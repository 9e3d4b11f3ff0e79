"""Residual streams [B, T, n, D]: checks of arguments, and products of a token's few streams."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.triton_common import refusal

# Checks of the arguments of operations on residual streams, with the shapes in the message.

MAX_STREAMS = 8
"""The largest n of Triton kernels: products of all pairs of streams are unrolled."""


def check_matrices(name: str, raw: Tensor) -> None:
    """Raise ValueError unless raw holds square matrices [..., n, n] of floating numbers."""
    if raw.dim() < 2 or raw.shape[-1] != raw.shape[-2] or raw.shape[-1] == 0 or not raw.is_floating_point():
        raise ValueError(f"{name} needs floating raw [..., n, n], got {raw.dtype} {tuple(raw.shape)}")


def check_streams(name: str, streams: Tensor, **wanted: tuple[Tensor, Sequence[int]]) -> None:
    """Raise ValueError unless streams are [B, T, n, D] and every further (tensor, shape) fits."""
    if streams.dim() != 4:
        raise ValueError(f"{name} needs streams [B, T, n, D], got {tuple(streams.shape)}")
    for what, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(
                f"{name} with streams {tuple(streams.shape)} needs {what} {tuple(shape)}, "
                f"got {tuple(tensor.shape)}"
            )


def refuses_streams(n: int, *tensors: Tensor) -> str | None:
    """Return why Triton kernels cannot take these tensors of n streams [..., n, D] or n×n matrices, or None."""
    if n > MAX_STREAMS:
        return f"needs n of at most {MAX_STREAMS}, got {n}"
    return refusal(*tensors)


# Products of a token's few streams, in the forms that are fast on a CPU.
#
# A matrix of 4 × 64 a token is too small for BLAS: thousands of such products take two to ten times as long as
# elementwise passes over the same numbers. Elsewhere they are batched products, which a GPU runs as one kernel and
# the FLOP counter, on the meta device, counts.

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
