"""PaTH attention with forgetting: softmax attention along a path of Householder matrices, with a forget gate.

    a_ij = scale · k_jᵀ·H_{j+1}·H_{j+2}·…·H_i·q_i + Σ_{s=j+1..i} g_s,    H_s = I − β_s·w_s·w_sᵀ
    o_i = Σ_{j ≤ i} softmax_j(a_ij) · v_j

Here are the public function, its checks, its backends and its work for a roofline.

reference.py        the definition: every query goes back over the tokens
torch_form.py       blocks of tokens in PyTorch
triton_ops.py       the same on a GPU: the order of the launches, forward and backward
triton_forward.py   kernels that prepare blocks, attend, and carry keys and gates along the path
triton_backward.py  kernels of the gradients, at two scales
"""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, check_attention, in_autocast_dtype, on_cuda, only_when_named
from kernels.ops.path_attention.reference import path_attention_reference
from kernels.ops.path_attention.torch_form import path_attention_torch
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

__all__ = ["path_attention"]


def _refuses(q, k, v, w, beta, g=None, **_options) -> str | None:
    return refusal(q, k, v, w, beta, g, widths=(q.shape[-1], v.shape[-1]))


OPERATION = Operation("path_attention")
OPERATION.register(
    "triton",
    lazily("kernels.ops.path_attention.triton_ops", "path_attention_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", path_attention_torch, suits=always)
OPERATION.register("reference", path_attention_reference, suits=only_when_named)


def path_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor | None,
    beta: Tensor | None,
    g: Tensor | None = None,
    *,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Causal softmax attention along a path of Householder matrices, with a forget gate.

        a_ij = scale · k_jᵀ·H_{j+1}·H_{j+2}·…·H_i·q_i + Σ_{s=j+1..i} g_s,    H_s = I − β_s·w_s·w_sᵀ
        o_i = Σ_{j ≤ i} softmax_j(a_ij) · v_j

    q           [B, T, H, K], any floating dtype; query head h uses KV head ⌊h·Hkv/H⌋
    k, v        [B, T, Hkv, K], [B, T, Hkv, V]; Hkv divides H
    w           [B, T, Hkv, K], of length 1 where H is to be a reflection (β = 2) or a projection (β = 1);
                None, together with beta: no Householder matrices (FoX)
    beta        [B, T, Hkv]; with |w| = 1 and 0 ≤ β ≤ 2 no product of H lengthens a key
    g           [B, T, H], log forget gate ≤ 0; None: nothing is forgotten (PaTH). Its sum is *outside* the scale
    scale       None: K^(−1/2)
    cu_seqlens  int32 [N+1] for packed sequences (B = 1)
    backend     auto, triton (what auto takes on a GPU), torch (both in blocks, memory linear in T), reference
                (definition, T × T memory)
    returns     [B, T, H, V] in q's dtype (under autocast: autocast's)

    All arithmetic in at least fp32. Raises ValueError for shapes that do not fit, and for a backend that is
    unknown or cannot serve the call;
    NotImplementedError for forward-mode differentiation, which the reference alone has.
    Source: Yang et al. 2025, PaTH Attention (arXiv:2505.16381), section 3; the gate: Lin et al. 2025, Forgetting
    Transformer (arXiv:2503.02130), equation 5.
    """
    check_attention("path_attention", q, k, v, cu_seqlens=cu_seqlens)
    check_path(q, k, w, beta, g)
    q, k, v = in_autocast_dtype(q, k, v)
    return OPERATION(q, k, v, w, beta, g, scale=scale, cu_seqlens=cu_seqlens, backend=backend)


def check_path(q: Tensor, k: Tensor, w: Tensor | None, beta: Tensor | None, g: Tensor | None) -> None:
    """Raise ValueError if w, beta or g do not fit q [B, T, H, K] and k [B, T, Hkv, K].

    w [B, T, Hkv, K] and beta [B, T, Hkv], or None together; g [B, T, H] or None.
    """
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"path_attention needs Tq = Tk, got q {tuple(q.shape)}, k {tuple(k.shape)}")
    if (w is None) != (beta is None):
        raise ValueError("path_attention needs w and beta together")
    for name, x, meaning, wanted in (
        ("w", w, "[B, T, Hkv, K]", k.shape),
        ("beta", beta, "[B, T, Hkv]", k.shape[:3]),
        ("g", g, "[B, T, H]", q.shape[:3]),
    ):
        if x is not None and x.shape != wanted:
            raise ValueError(f"path_attention needs {name} {meaning} = {tuple(wanted)}, got {tuple(x.shape)}")


# Operations and bytes, for a roofline.

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
