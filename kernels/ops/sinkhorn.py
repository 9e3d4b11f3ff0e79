"""Sinkhorn-Knopp, which makes nearly doubly stochastic matrices: public function, definition, PyTorch's form.

M = exp(raw);   iters times:   M_ij ← M_ij / Σ_i M_ij  (columns),   M_ij ← M_ij / Σ_j M_ij  (rows)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.streams import check_matrices, refuses_streams
from kernels.triton_common import lazily
from kernels.triton_common.tiles import Work, nbytes

# The definition.


def sinkhorn_reference(raw: Tensor, *, iters: int) -> Tensor:
    """Compute exp(raw), then divide columns and rows by their sums, in turn.

    raw [..., n, n], any floating dtype; iters: how often both are divided -> [..., n, n] in at least fp32.
    """
    m = raw.to(torch.promote_types(raw.dtype, torch.float32)).exp()
    for _ in range(iters):
        m = m / m.sum(-2, keepdim=True)
        m = m / m.sum(-1, keepdim=True)
    return m


# Log space, where exp cannot overflow and no column becomes 0.


def sinkhorn_torch(raw: Tensor, *, iters: int) -> Tensor:
    """Compute `kernels.sinkhorn` in log space: dividing by a sum is subtracting its logarithm, a log-softmax.

    The matrices' own axes come first, so that a vector unit works on many matrices at once: on a CPU 5 to 8
    times as fast as reducing over a last axis of four.

    raw [..., n, n], any floating dtype -> [..., n, n] in at least fp32.
    """
    n = raw.shape[-1]
    wide = raw.to(torch.promote_types(raw.dtype, torch.float32))
    logs = wide.reshape(-1, n * n).t().contiguous().view(n, n, -1)
    for _ in range(iters):
        logs = F.log_softmax(F.log_softmax(logs, 0), 1)
    return logs.exp().view(n * n, -1).t().contiguous().view(raw.shape)


# The public function and its backends.

__all__ = ["sinkhorn"]


def _refuses(raw: Tensor, **_options) -> str | None:
    return refuses_streams(raw.shape[-1], raw)


OPERATION = Operation("sinkhorn")
OPERATION.register(
    "triton",
    lazily("kernels.ops.sinkhorn_triton", "sinkhorn_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", sinkhorn_torch, suits=always)
OPERATION.register("reference", sinkhorn_reference, suits=only_when_named)


def sinkhorn(raw: Tensor, *, iters: int = 20, backend: str = "auto") -> Tensor:
    """Make nearly doubly stochastic matrices of arbitrary ones.

        M = exp(raw);   iters times:   M_ij ← M_ij / Σ_i M_ij  (columns),   M_ij ← M_ij / Σ_j M_ij  (rows)

    raw      [..., n, n], any floating dtype
    iters    how often columns and then rows are normalised
    backend  auto, triton (what auto takes on a GPU; n ≤ 8), torch (both in log space: any
             finite raw), reference (as written above)
    returns  [..., n, n] in at least fp32, entries ≥ 0. Rows sum to 1; columns only nearly, as rows come last:
             after 20 iterations the worst of 200,000 4×4 matrices is off by some 2e-3 to 4e-3 at raw of standard
             deviation 1 and by 6e-2 at 3, the median by 3e-13 and 2e-4

    The gradient is that of the iterations, not of their limit.
    Raises ValueError for a shape that is not [..., n, n], iters < 1 and an unknown backend.
    Source: Sinkhorn & Knopp 1967; mHC (arXiv:2512.24880), equation 9.
    """
    check_matrices("sinkhorn", raw)
    if iters < 1:
        raise ValueError(f"sinkhorn needs iters ≥ 1, got {iters}")
    return OPERATION(raw, iters=iters, backend=backend)


# Operations and bytes, for a roofline.


def work(raw: Tensor, *, iters: int = 20, **_options) -> list[Work]:
    """Count the operations and bytes of a call with these arguments.

    Forward: a difference, an exponential and a sum an entry in each half of an iteration. Backward: that
    again, and in each half two exponentials, a product, a difference and a sum more.

    raw [..., n, n].
    """
    once = 6 * iters * raw.numel()
    out = 4 * raw.numel()
    return [
        Work("sinkhorn", "forward", once, nbytes(raw) + out),
        Work("sinkhorn", "backward", 3 * once, 2 * nbytes(raw) + 2 * out),
    ]
