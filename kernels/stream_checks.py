"""Checks of the arguments of operations on residual streams, with the shapes in the message."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kernels.triton_common import refusal

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
