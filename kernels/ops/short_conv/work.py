"""Operations and bytes of the short convolution's kernels."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(x: Tensor, weight: Tensor, *, state: Tensor | None = None, **_options) -> list[Work]:
    """Count the operations and bytes of a call: k products and sums an element, and three times as many backward."""
    products = 2 * x.numel() * weight.shape[1]
    states = x.element_size() * x.shape[0] * x.shape[2] * (weight.shape[1] - 1)
    return [
        Work("short_conv", "forward", products, 2 * nbytes(x) + nbytes(weight, state) + states),
        Work("short_conv", "backward", 3 * products, 3 * nbytes(x) + 2 * nbytes(weight, state) + states),
    ]
