"""Operations and bytes of reading streams."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(
    streams: Tensor, h_pre: Tensor, *, gain: Tensor | None = None, hand_on: bool = False, **_options
) -> list[Work]:
    """Count the operations and bytes of a call: a product and a sum an element, and of both factors backward.

    With a norm the backward computes y again; the norm's own operations, ten or so a channel of y, are not counted.
    Where the streams are handed on the backward reads their gradient so far.

    streams [B, T, n, D], h_pre [B, T, n], gain [D] or None.
    """
    products = 2 * streams.numel()
    again = 0 if gain is None else products
    read = nbytes(streams) // streams.shape[-2]
    more = nbytes(streams) if hand_on else 0
    return [
        Work("hyper_pre", "forward", products, nbytes(streams, h_pre, gain) + read),
        Work("hyper_pre", "backward", 2 * products + again, 2 * nbytes(streams, h_pre, gain) + read + more),
    ]
