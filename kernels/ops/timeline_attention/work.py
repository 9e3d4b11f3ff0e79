"""Operations and bytes of timeline attention: the attention itself, and the routing around it."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes


def work(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    assignment: Tensor,
    *,
    n_timelines: int,
    rope_base: float | None = None,
    weight: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Operations and bytes of a call, for timelines of equal length.

    The sort reads the assignment to count and writes order, places and positions; its counts are few in comparison.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], assignment integer [B, T, H], weight [B, T, H] or None.
    """
    batch, time, heads = q.shape[:3]
    places = batch * time * heads
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    sorted_bytes = places * q.element_size() * (2 * q.shape[-1] + v.shape[-1])
    out = places * q.element_size() * v.shape[-1]
    products = places * (places / (sequences * heads * n_timelines)) * (q.shape[-1] + v.shape[-1])
    turns = 0 if rope_base is None else 6 * places * q.shape[-1]
    order, positions = 8 * places, 0 if rope_base is None else 8 * places
    weighing, again = (0, 0) if weight is None else (places * v.shape[-1], out)
    moved = nbytes(q, k, v) + sorted_bytes + order + positions
    return [
        Work("timeline_sort", "forward", 0, nbytes(assignment) + 3 * order),
        Work("timeline_gather", "forward", turns, moved),
        Work("timeline_attend", "forward", products, sorted_bytes + out),
        Work("timeline_put_back", "forward", weighing, 2 * out + order + nbytes(weight)),
        Work("timeline_gather", "backward", turns, moved),
        Work("timeline_attend", "backward", 2.5 * products, 2 * sorted_bytes + 2 * out),
        Work("timeline_put_back", "backward", 3 * weighing, again + 2 * out + order + 2 * nbytes(weight)),
    ]
