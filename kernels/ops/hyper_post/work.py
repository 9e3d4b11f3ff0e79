"""Operations and bytes of mixing streams and writing to them."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(streams: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor, **_options) -> list[Work]:
    """Count the operations and bytes of a call: n + 1 products and sums an element, and of both factors backward.

    streams [B, T, n, D], z [B, T, D], h_res [B, T, n, n] or [n, n], h_post [B, T, n].
    """
    products = 2 * streams.numel() * (streams.shape[-2] + 1)
    inputs = nbytes(streams, z, h_res, h_post)
    return [
        Work("hyper_post", "forward", products, inputs + nbytes(streams)),
        Work("hyper_post", "backward", 2 * products, 2 * inputs + nbytes(streams)),
    ]
