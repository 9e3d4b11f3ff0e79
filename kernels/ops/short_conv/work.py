"""Operations and bytes of the short convolution's kernels."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(
    x: Tensor,
    weight: Tensor,
    *,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Count the operations and bytes of a call: k products and sums an element, and three times as many backward.

    x [B, T, D], weight [D, k], state [N, D, k−1] or None.
    """
    products = 2 * x.numel() * weight.shape[1]
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    states = x.element_size() * sequences * x.shape[2] * (weight.shape[1] - 1)
    return [
        Work("short_conv", "forward", products, 2 * nbytes(x) + nbytes(weight, state) + states),
        Work("short_conv", "backward", 3 * products, 3 * nbytes(x) + 2 * nbytes(weight, state) + states),
    ]
