"""Operations and bytes of the coefficients of hyper-connections."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(
    streams: Tensor, phi: Tensor, scale: Tensor, bias: Tensor, *, hand_on: bool = False, **_options
) -> list[Work]:
    """Count the operations and bytes of a call: the product and the squares; backward the products of both gradients.

    Saved are, in fp32, the product after its scale and the scale; their few operations a token are not counted.
    Where the streams are handed on the backward reads their gradient so far.

    streams [B, T, n, D], phi [2n + m, n·D], scale [3], bias [2n + m].
    """
    tokens = streams.numel() // phi.shape[1]
    product, squares = 2 * tokens * phi.numel(), 2 * streams.numel()
    numbers = 4 * tokens * len(phi)  # of all rows in fp32: the coefficients, their gradients, what is saved
    once = nbytes(streams, phi, scale, bias)
    saved = numbers + 4 * tokens
    more = nbytes(streams) if hand_on else 0
    return [
        Work("hyper_coefficients", "forward", product + squares, once + numbers + saved),
        Work("hyper_coefficients", "backward", 2 * product + squares, 2 * once + numbers + saved + more),
    ]
