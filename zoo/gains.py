"""What a chain of residual mixing matrices does to a signal: the several numbers that are called its "norm".

They differ: an orthogonal 4×4 matrix has σ_max = 1 and may have an Amax gain of 2, and a bound on σ_max from
above does not keep σ_min from vanishing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from zoo.hyper import Coefficients, HyperResidual
from zoo.model import LanguageModel


def mixing_matrices(model: LanguageModel, tokens: Tensor) -> list[Tensor]:
    """H_res [B, T, n, n] of every sub-block on a batch of tokens [B, T], in the order of the signal."""
    found: list[Tensor] = []

    def keep(module: HyperResidual, inputs: tuple[Tensor], output: Coefficients) -> None:
        found.append(output.res.detach().expand(*tokens.shape, *output.res.shape[-2:]))

    handles = [m.register_forward_hook(keep) for m in model.modules() if isinstance(m, HyperResidual)]
    try:
        with torch.no_grad():
            model(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return found


def composite(matrices: Iterable[Tensor]) -> Tensor:
    """M = H_L·…·H_2·H_1 [..., n, n], in fp64: what L sub-blocks do to the streams between them."""
    product: Tensor | None = None
    for matrix in matrices:
        product = matrix.double() if product is None else matrix.double() @ product
    if product is None:
        raise ValueError("composite needs at least one matrix")
    return product


def gains(matrix: Tensor) -> dict[str, Tensor]:
    """The gains of M [..., n, n], each [...].

    sigma_max, sigma_min  largest and smallest singular value
    amax                  max(max_i |Σ_j M_ij|, max_j |Σ_i M_ij|): signed sums, as mHC's figures have it
    row_sum               max_i Σ_j |M_ij|: the largest growth of a stream's largest entry
    """
    singular = torch.linalg.svdvals(matrix)
    rows, columns = matrix.sum(-1).abs().amax(-1), matrix.sum(-2).abs().amax(-1)
    return {
        "sigma_max": singular[..., 0],
        "sigma_min": singular[..., -1],
        "amax": torch.maximum(rows, columns),
        "row_sum": matrix.abs().sum(-1).amax(-1),
    }
