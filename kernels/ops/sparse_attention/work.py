"""Operations and bytes of sparse attention's kernels."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, listed_pairs, nbytes


def work(
    q: Tensor, k: Tensor, v: Tensor, indices: Tensor, *, gate_logits: Tensor | None = None, **_options
) -> list[Work]:
    """Operations and bytes of a call: two products forward and five backward a query, head and key of its list.

    Lists are taken to be causal, packed sequences to be one: a query lists keys that it sees, and −1 elsewhere.
    Keys count once however many queries gather them: traffic above this comes from gathers that miss the caches.
    A gate is read once each way; backward, its gradient and the ungated output's are written, and the latter is read.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], indices integer [B, Tq, n], gate_logits [B, Tq, H, V] or
    None.
    """
    pairs = 2 * q.shape[0] * q.shape[2] * listed_pairs(q.shape[1], k.shape[1], indices.shape[2])
    width, value_width = q.shape[3], v.shape[3]
    output = q.element_size() * q.shape[0] * q.shape[1] * q.shape[2] * value_width
    sums = 4 * q.shape[0] * q.shape[1] * q.shape[2]  # log Σ exp
    moved = nbytes(q, k, v)
    gate = nbytes(gate_logits)
    ungated = 0 if gate_logits is None else 2 * output  # its gradient, written and read
    return [
        Work(
            "sparse_attention",
            "forward",
            pairs * (width + value_width),
            moved + output + sums + gate + nbytes(indices),
        ),
        Work(
            "sparse_attention",
            "backward",
            pairs * (3 * width + 2 * value_width),
            2 * moved + 2 * output + sums + 2 * gate + ungated + nbytes(indices),
        ),
    ]
