"""Operations and bytes of native sparse attention's kernels."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kernels.ops.nsa_attention.blocks import Sizes
from kernels.triton_common.work import Work, nbytes

Pair = tuple[Tensor, Tensor]


def work(
    q: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    *,
    block_size: int,
    stride: int,
    select_size: int,
    n_select: int,
    window: int,
    q_rotated: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Operations and bytes of a call: visible scores alone; backward the weights again and four products.

    Top-k of blocks computes the scores of compression again: its sums over heads need every head's log-sum-exp first.

    q, q_rotated [B, Tq, H, K]; compressed, selected, sliding: pairs of k [B, M or Tk, Hkv, K], v [B, M or Tk, Hkv, V];
    gates [B, Tq, H, 3].
    """
    sizes = Sizes(block_size, stride, select_size, n_select, window)
    t, times = _positions(q, selected[0].shape[1], cu_seqlens)
    heads, width, value_width = q.shape[2], q.shape[3], selected[1].shape[3]
    out = q.shape[:3].numel() * value_width * q.element_size()
    statistics = 4 * q.shape[:3].numel()
    chosen = 4 * q.shape[0] * q.shape[1] * selected[0].shape[2] * n_select
    branches = {
        "compression": (_compressed(t, sizes), compressed, 0),
        "selection": (_selected(t, sizes), selected, chosen),
        "window": ((t + 1).clamp_max(window), sliding, 0),
    }
    found = []
    for name, (seen, pair, lists) in branches.items():
        scores = float(seen.sum()) * times * heads
        read = nbytes(q, *pair) + lists
        found.append(Work(name, "forward", 2 * scores * (width + value_width), read + out + statistics))
        backward = 2 * scores * (3 * width + 2 * value_width)
        found.append(Work(name, "backward", backward, 2 * read - lists + out + 3 * statistics))
        if name == "compression":
            read = nbytes(q, pair[0]) + statistics + chosen
            found.append(Work("choice", "forward", 2 * scores * width, read))
    products = 6 * q.shape[:3].numel() * value_width
    found.append(Work("mix", "forward", products, 4 * out + nbytes(gates)))
    found.append(Work("mix", "backward", products, 4 * out + 2 * nbytes(gates) + 3 * statistics))
    return found


def _positions(q: Tensor, time: int, cu_seqlens: Tensor | None) -> tuple[Tensor, int]:
    """Positions of the queries, and how many sequences have them. Boundaries without data: one sequence."""
    if cu_seqlens is None or cu_seqlens.is_meta:
        return torch.arange(time - q.shape[1], time), q.shape[0]
    lengths = [stop - start for start, stop in itertools.pairwise(cu_seqlens.tolist())]
    return torch.cat([torch.arange(length) for length in lengths]), 1


def _compressed(t: Tensor, sizes: Sizes) -> Tensor:
    """The blocks that have ended at t."""
    return ((t + 1 - sizes.block_size) // sizes.stride + 1).clamp_min(0)


def _selected(t: Tensor, sizes: Sizes) -> Tensor:
    """The tokens up to t of its chosen blocks."""
    own = t // sizes.select_size
    return own.clamp_max(sizes.n_select - 1) * sizes.select_size + t % sizes.select_size + 1
