"""Operations and bytes of the Cayley transform."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(raw: Tensor, **_options) -> list[Work]:
    """Count the operations and bytes of a call: a solve with n right sides, (8/3)·n³; backward two products, 4·n³.

    raw [..., n, n] of any dtype, may be on the meta device.
    """
    cubes = raw.numel() * raw.shape[-1]
    out = 4 * raw.numel()
    return [
        Work("cayley", "forward", cubes * 8 / 3, nbytes(raw) + out),
        Work("cayley", "backward", 4 * cubes, nbytes(raw) + 2 * out),
    ]
