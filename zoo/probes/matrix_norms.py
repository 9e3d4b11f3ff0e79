"""Products of residual mixing matrices, and the different numbers that are called the "norm" of one.

They differ: an orthogonal 4×4 matrix has σ_max = 1 and may have an Amax gain of 2, and a bound on σ_max from
above does not keep σ_min from vanishing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def chain_product(matrices: Iterable[Tensor]) -> Tensor:
    """M = H_L·…·H_2·H_1 [..., n, n], in fp64: the effect of L sub-blocks on the streams; ValueError for none."""
    product: Tensor | None = None
    for matrix in matrices:
        product = matrix.double() if product is None else matrix.double() @ product
    if product is None:
        raise ValueError("chain_product needs at least one matrix")
    return product


def matrix_norms(matrix: Tensor) -> dict[str, Tensor]:
    """The norms of M [..., n, n], each [...] but for the first.

    sigma                 all singular values [..., n], largest first
    sigma_max, sigma_min  the largest and the smallest; what is below σ_max·eps of the dtype is rounding
    amax                  max(max_i |Σ_j M_ij|, max_j |Σ_i M_ij|): signed sums, as mHC's figures have it
    row_sum               max_i Σ_j |M_ij|: the largest growth of a stream's largest entry
    """
    sigma = singular_values(matrix)
    rows, columns = matrix.sum(-1).abs().amax(-1), matrix.sum(-2).abs().amax(-1)
    return {
        "sigma": sigma,
        "sigma_max": sigma[..., 0],
        "sigma_min": sigma[..., -1],
        "amax": torch.maximum(rows, columns),
        "row_sum": matrix.abs().sum(-1).amax(-1),
    }


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values [..., n] of M [..., n, n], largest first; NaN where M is not finite (LAPACK would raise)."""
    finite = matrix.isfinite().all(-1).all(-1)
    values = torch.linalg.svdvals(torch.where(finite[..., None, None], matrix, 0.0))
    return torch.where(finite[..., None], values, torch.nan)
