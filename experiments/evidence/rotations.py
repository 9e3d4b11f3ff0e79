"""Claims 1, 2, 3 and 5: the Cayley transform, its series, its time and mixtures of rotations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import kernels
from experiments.evidence import measure
from experiments.evidence.numbers import (
    ROUNDING,
    Number,
    bounded,
    exact,
    in_turns,
    milliseconds,
    paired,
    sampled,
)

MATRICES = 20_000
STREAMS = 4
LAYERS = 60
"""Depth at which the SHC document compares gains; a layer has two sub-blocks."""


def raw_matrices(count: int, n: int = STREAMS, dtype: torch.dtype = torch.float64) -> Tensor:
    """Matrices [count, n, n] of standard normal numbers."""
    return torch.randn(count, n, n, dtype=dtype)


@measure(1)
def identities() -> Iterator[Number]:
    """QᵀQ = I, det Q = 1, singular values 1, for 2 to 8 streams, in fp64 and fp32."""
    for dtype, bound in ROUNDING.items():
        worst = {"QᵀQ = I": 0.0, "det Q = 1": 0.0, "singular values = 1": 0.0, "Cayley(0) = I": 0.0}
        for n in range(2, 9):
            q, eye = kernels.cayley(raw_matrices(MATRICES // n, n, dtype)), torch.eye(n, dtype=dtype)
            errors = (
                (q.mT @ q - eye).abs().max(),
                (torch.linalg.det(q) - 1).abs().max(),
                (torch.linalg.svdvals(q) - 1).abs().max(),
                (kernels.cayley(torch.zeros(n, n, dtype=dtype)) - eye).abs().max(),
            )
            worst = {key: max(e, x.item()) for (key, e), x in zip(worst.items(), errors, strict=True)}
        for name, error in worst.items():
            yield bounded(f"error of {name}, {str(dtype).removeprefix('torch.')}", error, bound)


@measure(1)
def free_parameters_and_gradient() -> Iterator[Number]:
    """The rank of dQ/draw, and dQ = −2(I + A)⁻¹·dA·(I + A)⁻¹ against automatic differentiation."""
    for n in (2, 3, STREAMS):
        jacobian = torch.autograd.functional.jacobian(kernels.cayley, raw_matrices(1, n)[0])
        rank = torch.linalg.matrix_rank(jacobian.reshape(n * n, n * n))
        yield exact(f"free numbers less n(n−1)/2 at n = {n}", rank.item() - n * (n - 1) // 2)
    raw, d_raw = raw_matrices(1)[0], raw_matrices(1)[0]
    _, derivative = torch.autograd.functional.jvp(kernels.cayley, raw, d_raw)
    inverse = torch.linalg.inv(torch.eye(STREAMS, dtype=raw.dtype) + (raw - raw.T) / 2)
    formula = -2 * inverse @ ((d_raw - d_raw.T) / 2) @ inverse
    yield bounded("error of the gradient's formula", (formula - derivative).abs().max(), ROUNDING[raw.dtype])


def skew_of_norm(norm: float, count: int) -> Tensor:
    """Random skew matrices [count, 4, 4] of this spectral norm, fp64."""
    raw = raw_matrices(count)
    a = (raw - raw.mT) / 2
    return norm * a / torch.linalg.matrix_norm(a, ord=2)[:, None, None]


def off_rotation(a: Tensor, terms: int) -> Tensor:
    """‖QᵀQ − I‖₂ of the series up to (−A)^terms in place of (I + A)⁻¹, [count]."""
    q = kernels.cayley(a, neumann_terms=terms)
    return torch.linalg.matrix_norm(q.mT @ q - torch.eye(STREAMS, dtype=q.dtype), ord=2)


@measure(2)
def neumann_series() -> Iterator[Number]:
    """Orthogonality error against ‖A‖ and the number of terms, its formula, and the terms that a rotation takes."""
    for norm in (0.1, 0.5, 0.9):
        a = skew_of_norm(norm, 2000)
        for terms in (2, 5):
            yield sampled(f"‖QᵀQ − I‖ at ‖A‖ = {norm}, K = {terms}", off_rotation(a, terms))
        errors = off_rotation(a, 8)
        yield bounded(
            f"error of ‖QᵀQ − I‖ = ‖A‖^(2K+2) at ‖A‖ = {norm}, K = 8", (errors - norm**18).abs().max(), 1e-12
        )
    a = skew_of_norm(0.9, 200)
    needed = next(k for k in range(2, 400, 2) if off_rotation(a, k).max() <= ROUNDING[torch.float32])
    yield exact("smallest even K with an error of at most 1e-5 at ‖A‖ = 0.9", needed, "terms")


def _passes(project: Callable[[Tensor], Tensor], raw: Tensor, weight: Tensor) -> Callable[[], None]:
    """Forward and backward pass of a map onto mixing matrices."""

    def call() -> None:
        raw.grad = None
        project(raw).backward(weight)

    return call


@measure(3)
def time_of_maps() -> Iterator[Number]:
    """100,000 4×4 maps, forward and backward, in turns: Cayley in closed form and solved, 20 Sinkhorn iterations."""
    raw = raw_matrices(100_000, dtype=torch.float32).requires_grad_()
    weight = torch.randn_like(raw)
    maps = {
        "closed form": kernels.cayley,
        "solve": lambda x: kernels.cayley(x, backend="reference"),
        "Sinkhorn": lambda x: kernels.sinkhorn(x, iters=20),
    }
    calls = {name: _passes(project, raw, weight) for name, project in maps.items()}
    times = in_turns(calls, 11)
    yield milliseconds("Sinkhorn, 20 iterations, 100,000 matrices", times["Sinkhorn"])
    for name in ("closed form", "solve"):
        yield paired(f"Sinkhorn's time over Cayley's, {name}", times["Sinkhorn"], times[name])


def mixtures(count: int, spread: float) -> Tensor:
    """Σ_i softmax_i · Q_i of two random rotations, [count, 4, 4], fp64."""
    weights = torch.randn(count, 2, dtype=torch.float64).softmax(-1)
    rotations = kernels.cayley(spread * torch.randn(count, 2, STREAMS, STREAMS, dtype=torch.float64))
    return (weights[..., None, None] * rotations).sum(1)


def product(matrices: Tensor) -> Tensor:
    """The product over the first axis of [factors, count, n, n]."""
    total = matrices[0]
    for matrix in matrices[1:]:
        total = matrix @ total
    return total


@measure(5)
def mixtures_of_rotations() -> Iterator[Number]:
    """σ_max of mixtures and of their products over 60 layers, and what the products do to σ_min."""
    one = torch.linalg.svdvals(mixtures(MATRICES, 1.0))
    yield bounded("σ_max of a mixture above 1", (one[:, 0] - 1).clamp(min=0).max(), 1e-12)
    for spread in (0.1, 0.3, 1.0):
        factors = mixtures(2 * LAYERS * 200, spread).view(2 * LAYERS, 200, STREAMS, STREAMS)
        sigma = torch.linalg.svdvals(product(factors))
        yield bounded(
            f"σ_max above 1 of products over {LAYERS} layers, raw sd {spread}",
            (sigma[:, 0] - 1).clamp(min=0).max(),
            1e-12,
        )
        yield sampled(f"log10 σ_min of products over {LAYERS} layers, raw sd {spread}", sigma[:, -1].log10())
