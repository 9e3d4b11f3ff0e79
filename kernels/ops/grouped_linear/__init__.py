"""A linear map of its own for every group of rows: the public function and its backends."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, in_autocast_dtype, only_when_named
from kernels.ops.grouped_linear.reference import grouped_linear_reference
from kernels.ops.grouped_linear.torch_ops import grouped_linear_torch

__all__ = ["grouped_linear"]

OPERATION = Operation("grouped_linear")
OPERATION.register("torch", grouped_linear_torch, suits=always)
OPERATION.register("reference", grouped_linear_reference, suits=only_when_named)


def grouped_linear(x: Tensor, weight: Tensor, counts: Tensor, *, backend: str = "auto") -> Tensor:
    """Multiply every group of rows by a matrix of its own, as a mixture of experts does.

        y_m = W_e · x_m     for the group e that row m belongs to

    x        [M, K], rows in the order of their groups: the first counts[0] are group 0's, the next counts[1] group 1's
    weight   [E, N, K], as E weights of nn.Linear
    counts   integer [E], Σ = M, zeros allowed; read on the host
    backend  auto, torch (one product a group), reference
    returns  [M, N] in x's dtype (under autocast: autocast's)

    Raises ValueError for shapes that do not fit, and for an unknown backend;
    NotImplementedError for forward-mode differentiation, which the reference alone has.
    """
    shapes = f"x {tuple(x.shape)}, weight {tuple(weight.shape)}, counts {tuple(counts.shape)}"
    if x.dim() != 2 or weight.dim() != 3 or counts.shape != weight.shape[:1] or x.shape[1] != weight.shape[2]:
        raise ValueError(f"grouped_linear needs x [M, K], weight [E, N, K], counts [E], got {shapes}")
    if counts.dtype.is_floating_point:
        raise ValueError(f"grouped_linear needs integer counts, got {counts.dtype}")
    x, weight = in_autocast_dtype(x, weight)
    return OPERATION(x, weight, counts, backend=backend)
