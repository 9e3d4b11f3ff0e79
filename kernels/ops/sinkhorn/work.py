"""Operations and bytes of Sinkhorn-Knopp."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(raw: Tensor, *, iters: int = 20, **_options) -> list[Work]:
    """Count the operations and bytes of a call with these arguments.

    Forward: a difference, an exponential and a sum an entry in each half of an iteration. Backward: that
    again, and in each half two exponentials, a product, a difference and a sum more.

    raw [..., n, n].
    """
    once = 6 * iters * raw.numel()
    out = 4 * raw.numel()
    return [
        Work("sinkhorn", "forward", once, nbytes(raw) + out),
        Work("sinkhorn", "backward", 3 * once, 2 * nbytes(raw) + 2 * out),
    ]
