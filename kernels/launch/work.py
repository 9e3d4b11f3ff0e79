"""What a kernel has to do at least: operations and bytes, for a roofline."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Work:
    """One kernel's share of a call.

    kernel  its name
    way     "forward" or "backward"
    flops   multiplications and additions, a fused one counting as two
    bytes   of main memory: every input read once and every output written once, what stays in caches not at all
    """

    kernel: str
    way: str
    flops: float
    bytes: float


def nbytes(*tensors: Tensor | None) -> int:
    """Bytes of all tensors together; works on the meta device."""
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)
