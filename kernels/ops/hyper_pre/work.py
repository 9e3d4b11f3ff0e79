"""Operations and bytes of reading streams."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(streams: Tensor, h_pre: Tensor, **_options) -> list[Work]:
    """Count the operations and bytes of a call: a product and a sum an element, and of both factors backward."""
    products = 2 * streams.numel()
    read = nbytes(streams) // streams.shape[-2]
    return [
        Work("hyper_pre", "forward", products, nbytes(streams, h_pre) + read),
        Work("hyper_pre", "backward", 2 * products, 2 * nbytes(streams, h_pre) + read),
    ]
