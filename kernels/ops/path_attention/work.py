"""Operations and bytes of the kernels of PaTH attention."""

from __future__ import annotations

from torch import Tensor

from kernels.triton_common.work import Work, nbytes

BLOCK = 128


def work(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Operations and bytes of a call; packed sequences count as if they were of equal length.

    The scores of all pairs j ≤ i of every query head, and, where H is not I, every key of a KV head taken through every
    later block of 128 tokens: 2·K² operations. Backward, scores take five products instead of two, and the
    path three: there, back, and the gradient of the block's matrix.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], w [B, T, Hkv, K] and beta [B, T, Hkv] or None, g [B, T, H] or
    None.
    """
    sequences = q.shape[0] if cu_seqlens is None else max(1, cu_seqlens.shape[0] - 1)
    time = q.shape[0] * q.shape[1] / sequences
    pairs = sequences * time * (time + 1) / 2
    width, values = q.shape[3], v.shape[3]
    carried = 0 if w is None else 2 * width**2 * k.shape[2] * pairs / BLOCK
    inputs = nbytes(q, k, v, w, beta, g)
    out = q.numel() // width * (values * q.element_size() + 4)  # and a log-sum-exp
    forward = 2 * q.shape[2] * pairs * (width + values) + carried
    backward = 2 * q.shape[2] * pairs * (3 * width + 2 * values) + 3 * carried
    return [
        Work("path_attention", "forward", forward, inputs + out),
        Work("path_attention", "backward", backward, 2 * inputs + 2 * out),
    ]
