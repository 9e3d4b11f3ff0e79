"""The least work of a kernel, operations and bytes, for a roofline."""

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
    """Return the bytes of all tensors [...] together, None as 0; works on the meta device."""
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)


def listed_pairs(queries: int, keys: int, places: int) -> int:
    """Count Σ_t min(places, keys that query t sees), the entries of causal lists of so many places; others hold −1.

    Query t stands at position t + keys − queries. More queries than keys have no such order: all places count.
    """
    most = min(places, keys)
    ramp = max(0, most - 1 - (keys - queries)) if queries <= keys else 0  # queries that see fewer than `most`
    return queries * most - ramp * (ramp + 1) // 2
