"""Operations and bytes of a linear map of normalised vectors."""

from __future__ import annotations

from torch import Tensor

from kernels.launch.work import Work, nbytes


def work(x: Tensor, weight: Tensor, **_options) -> list[Work]:
    """Of a call with these arguments: the product and the squares; backward the products of both gradients."""
    vectors = x.numel() // x.shape[-1]
    product = 2 * vectors * weight.numel()
    out = 4 * vectors * weight.shape[0]
    scale = 4 * vectors
    return [
        Work("rms_linear", "forward", product + 2 * x.numel(), nbytes(x, weight) + out + scale),
        Work("rms_linear", "backward", 2 * product + 2 * x.numel(), 2 * nbytes(x, weight) + 2 * out + scale),
    ]
