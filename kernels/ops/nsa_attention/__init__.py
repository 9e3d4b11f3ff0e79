"""Native sparse attention: to summaries of all blocks, to the blocks that those find important, to the last tokens.

The equations are in `nsa_attention`. Here are the public function, its checks, its backends and its work for a
roofline.

blocks.py           sizes of blocks and window, the overlapping blocks of compression, the top-k of blocks
reference.py        the definition: every score, explicit masks
torch_form.py       blocks of queries in PyTorch, and one query
numba_ops.py        operators for a CPU: which keys each branch reads, as ranges
numba_form.py       attention to ranges of keys, compiled by Numba
triton_ops.py       the same on a GPU: the order of the steps, forward and backward
triton_forward.py   kernels of the branches and of the top-k of blocks
triton_backward.py  kernels of the branches' gradients
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kernels.dispatch import Operation, always, check_attention, in_autocast_dtype, on_cuda, only_when_named
from kernels.ops.nsa_attention.blocks import Sizes, nsa_blocks
from kernels.ops.nsa_attention.numba_ops import nsa_attention_numba, refuses_numba
from kernels.ops.nsa_attention.reference import nsa_attention_reference
from kernels.ops.nsa_attention.torch_form import nsa_attention_torch
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

__all__ = ["nsa_attention", "nsa_blocks"]

Pair = tuple[Tensor, Tensor]

MOST_SELECTED = 256
"""The longest list of blocks that the kernel holds while it selects."""

MOST_GROUP_BYTES = 1 << 16
"""The queries (or values) of one token's group that fit shared memory with the keys, heads and width as powers of
two: 128 heads of 256 channels in 16 bit, 64 in fp32."""


def _refuses(
    q: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    *,
    q_rotated: Tensor,
    sizes: Sizes,
    **_options,
) -> str | None:
    if q.shape[1] > 1 and sliding[0].shape[1] != selected[0].shape[1]:
        return "needs as many keys for the window as to select from, for more than one query"
    if sizes.n_select > MOST_SELECTED:
        return f"chooses at most {MOST_SELECTED} blocks, got n_select={sizes.n_select}"
    widths = (q.shape[3], selected[1].shape[3])
    group, width = q.shape[2] // selected[0].shape[2], max(widths)
    if _power_of_2(group) * _power_of_2(width) * q.element_size() > MOST_GROUP_BYTES:
        given = f"{group} heads of {width} channels in {q.element_size()} bytes"
        return f"needs groups of query heads that fit {MOST_GROUP_BYTES} bytes of shared memory, got {given}"
    return refusal(q, q_rotated, *compressed, *selected, *sliding, gates, widths=widths)


def _power_of_2(number: int) -> int:
    """The smallest power of 2 that is not below the number."""
    return 1 << (number - 1).bit_length()


def _suits(q: Tensor, *_args, **_options) -> bool:
    """Return whether `auto` takes Triton; a decoding step reads views of caches, which the kernels would copy whole."""
    return on_cuda(q) and q.shape[1] > 1


def _suits_numba(q: Tensor, *_args, **_options) -> bool:
    """Return whether `auto` takes Numba: for more than one query."""
    return q.shape[1] > 1


OPERATION = Operation("nsa_attention")
OPERATION.register(
    "triton",
    lazily("kernels.ops.nsa_attention.triton_ops", "nsa_attention_triton"),
    refuses=_refuses,
    suits=_suits,
)
OPERATION.register("numba", nsa_attention_numba, refuses=refuses_numba, suits=_suits_numba)
OPERATION.register("torch", nsa_attention_torch, suits=always)
OPERATION.register("reference", nsa_attention_reference, suits=only_when_named)


def nsa_attention(
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
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attention to summaries of all blocks, to the blocks that those find important, and to the last tokens.

        p_ti = softmax_i(scale · q_t·k^cmp_i)           over the blocks i with i·d + l − 1 ≤ t
        I_tj = Σ_g Σ_i p_gti · |[i·d, i·d + l) ∩ [j·l', (j+1)·l')| / l      g: query heads of one KV head
        S_t  = {0, b − 1, b} ∩ ℕ, b = ⌊t/l'⌋, and the highest I_tj of j < b − 1: n blocks, or all if fewer
        o_t  = g_t0·Σ_i p_ti·v^cmp_i + g_t1·attention over the tokens s ≤ t of S_t + g_t2·over t − w < s ≤ t

    with l = block_size, d = stride, l' = select_size, n = n_select, w = window. Ties (within 2^−39 of the
    group's mean) go to the lower j, and a NaN ranks above all numbers; the selection passes no gradient. A query that
    sees no block gets 0 from the first branch.

    q           [B, Tq, H, K], any floating dtype; query head h uses KV head ⌊h·Hkv/H⌋
    compressed  k [B, M, Hkv, K], v [B, M, Hkv, V]: one row a block, in the order of `nsa_blocks`; M ≥ ⌊(Tk − l)/d⌋ + 1
    selected    k [B, Tk, Hkv, K], v [B, Tk, Hkv, V]
    sliding     likewise; the last w − 1 + Tq tokens of the Tk will do. Query i stands at position i + Tk − Tq: a
                shorter q aligns with the end of k
    gates       [B, Tq, H, 3], after the sigmoid: compression, selection, window
    block_size, stride, select_size, n_select, window   stride divides both sizes, n_select ≥ 3, window ≥ 1
    q_rotated   None, or [B, Tq, H, K]: the query of selection and window, where positions are rotated
    scale       None: K^(−1/2)
    cu_seqlens  int32 [N+1] for packed sequences (B = 1, Tq = Tk): blocks start anew in each
    backend     auto, triton (what auto takes on a GPU for more than one query; n ≤ 256, and a token's group of
                heads at most 64 KiB), numba (on a CPU likewise; fp32, nothing packed), torch (blocks of queries; tiles
                of queries by block), reference (Tq × Tk memory)
    returns     [B, Tq, H, V] in q's dtype (under autocast: autocast's)

    Softmax in at least fp32. Memory is linear in T; work a query T/d + n·l' + w scores a head. First order
    gradients.
    Raises ValueError for sizes or shapes that do not fit, and for a backend that is unknown;
    NotImplementedError for forward-mode differentiation, which the reference alone has.
    Source: Yuan et al. 2025, Native Sparse Attention (arXiv:2502.11089), equations 5 to 12.
    """
    sizes = Sizes(block_size, stride, select_size, n_select, window)
    q_rotated = q if q_rotated is None else q_rotated
    _check(q, q_rotated, compressed, selected, sliding, gates, sizes, cu_seqlens)
    q, q_rotated, *kv = in_autocast_dtype(q, q_rotated, *compressed, *selected, *sliding)
    return OPERATION(
        q,
        tuple(kv[:2]),
        tuple(kv[2:4]),
        tuple(kv[4:]),
        gates,
        q_rotated=q_rotated,
        sizes=sizes,
        scale=scale,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )


def _check(
    q: Tensor,
    q_rotated: Tensor,
    compressed: Pair,
    selected: Pair,
    sliding: Pair,
    gates: Tensor,
    sizes: Sizes,
    cu_seqlens: Tensor | None,
) -> None:
    name, time, near = "nsa_attention", selected[0].shape[1], sliding[0].shape[1]
    check_attention(f"{name} (selection)", q_rotated, *selected, cu_seqlens=cu_seqlens)
    check_attention(f"{name} (window)", q_rotated, *sliding, cu_seqlens=cu_seqlens)
    check_attention(f"{name} (compression)", q, *compressed, causal=False)
    if q.shape != q_rotated.shape or gates.shape != (*q.shape[:3], 3):
        given = ", ".join(str(tuple(x.shape)) for x in (q, q_rotated, gates))
        raise ValueError(f"{name} needs q, q_rotated [B, Tq, H, K] and gates [B, Tq, H, 3], got {given}")
    if not compressed[1].shape[2:] == selected[1].shape[2:] == sliding[1].shape[2:]:
        given = ", ".join(str(tuple(v.shape)) for _, v in (compressed, selected, sliding))
        raise ValueError(f"{name} needs values of the same [Hkv, V] in all branches, got {given}")
    seen = min(sizes.window - 1 + q.shape[1], time)
    if near > time or near < seen:
        raise ValueError(f"{name} needs the last {seen} to {time} keys for its window, got {near}")
    needed = sizes.compressed(time) if cu_seqlens is None else time // sizes.stride
    if compressed[0].shape[1] < needed:
        given = compressed[0].shape[1]
        raise ValueError(f"{name} needs {needed} compressed blocks for {time} tokens, got {given}")


# Operations and bytes, for a roofline.


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
    works = []
    for name, (seen, pair, lists) in branches.items():
        scores = float(seen.sum()) * times * heads
        read = nbytes(q, *pair) + lists
        works.append(Work(name, "forward", 2 * scores * (width + value_width), read + out + statistics))
        backward = 2 * scores * (3 * width + 2 * value_width)
        works.append(Work(name, "backward", backward, 2 * read - lists + out + 3 * statistics))
        if name == "compression":
            read = nbytes(q, pair[0]) + statistics + chosen
            works.append(Work("choice", "forward", 2 * scores * width, read))
    products = 6 * q.shape[:3].numel() * value_width
    works.append(Work("mix", "forward", products, 4 * out + nbytes(gates)))
    works.append(Work("mix", "backward", products, 4 * out + 2 * nbytes(gates) + 3 * statistics))
    return works


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
