"""Attention over selected keys: every query has its own set of them, shared by its heads.

    o_t = σ(l_t) ⊙ Σ_s softmax_s(scale · q_t·k_s) · v_s     over s ∈ S_t, the indices of t

Here are the public function, its checks, its backends and its work for a roofline.

reference.py      the definition: a mask over all pairs of tokens
select.py         two ways to read selected keys, and the queries that select a key
torch_form.py     blocks of queries in PyTorch, by a mask or by copies of the selected keys
triton_ops.py     the same on a GPU, by gathering; the choice between this and
triton_masked.py  tiles of all keys, masked
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Operation, always, check_attention, in_autocast_dtype, on_cuda, only_when_named
from kernels.ops.sparse_attention.reference import sparse_attention_reference
from kernels.ops.sparse_attention.torch_form import sparse_attention_torch
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, listed_pairs, nbytes

__all__ = ["sparse_attention"]


def _refuses(
    q: Tensor, k: Tensor, v: Tensor, *_args, gate_logits: Tensor | None = None, **_options
) -> str | None:
    return refusal(q, k, v, gate_logits, widths=(q.shape[-1], v.shape[-1]))


OPERATION = Operation("sparse_attention")
OPERATION.register(
    "triton",
    lazily("kernels.ops.sparse_attention.triton_ops", "sparse_attention_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", sparse_attention_torch, suits=always)
OPERATION.register("reference", sparse_attention_reference, suits=only_when_named)


def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    *,
    gate_logits: Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Softmax attention of every query over its own set of keys, shared by its heads.

        o_t = σ(l_t) ⊙ Σ_s softmax_s(scale · q_t·k_s) · v_s     over s ∈ S_t, the indices of t; 0 where S_t is empty

    q           [B, Tq, H, K], any floating dtype; query head h uses KV head ⌊h·Hkv/H⌋
    k, v        [B, Tk, Hkv, K], [B, Tk, Hkv, V]; Hkv divides H
    indices     int32 or int64 [B, Tq, n], positions along the (packed) key axis in any order, each at most
                once a query; −1 where unused. Causality and the borders of packed sequences are the indices'
                own. Only `reference` reports values out of range; elsewhere the result is undefined
    gate_logits [B, Tq, H, V], any floating dtype, l: a gate on the output before its sigmoid, as the gradient of
                l needs the gated output alone, and that of σ(l) the ungated one too; None: no gate
    scale       None: K^(−1/2)
    cu_seqlens  int32 [N+1] for packed sequences (B = 1); the result does not depend on it
    backend     auto, triton (what auto takes on a GPU: tiles of all keys, masked, with a bit a pair, up to
                Tk·H/Hkv = 128·n, and above it the lists' keys one by one), torch (blocks of queries), reference
                (Tq × Tk memory)
    returns     [B, Tq, H, V] in q's dtype (under autocast: autocast's)

    Softmax in at least fp32. Where keys are gathered, memory is linear in T for a fixed n and work T·n·H·(K + V);
    the torch form, too, gathers where that is cheaper than a mask over all keys (n well below T).
    Raises ValueError for shapes that do not fit, and for a backend that is unknown or cannot serve the call;
    NotImplementedError for forward-mode differentiation, which the reference alone has.
    Source: DeepSeek-AI 2025, DeepSeek-V3.2, equation 2; OrthGSA, step 3.5.
    """
    check_attention("sparse_attention", q, k, v, causal=False, cu_seqlens=cu_seqlens)
    check_indices("sparse_attention", indices, q)
    check_gate(gate_logits, q, v)
    q, k, v = in_autocast_dtype(q, k, v)
    options = {"gate_logits": gate_logits, "scale": scale, "cu_seqlens": cu_seqlens}
    return OPERATION(q, k, v, indices, **options, backend=backend)


def check_indices(name: str, indices: Tensor, q: Tensor) -> None:
    """Raise ValueError unless indices are int32 or int64 [B, Tq, n] with n ≥ 1, for q [B, Tq, ...]."""
    fits = indices.dim() == 3 and indices.shape[:2] == q.shape[:2] and indices.shape[2] > 0
    if not fits or indices.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{name} needs indices int32 or int64 [B, Tq, n] with [B, Tq] = {tuple(q.shape[:2])}, n ≥ 1, "
            f"got {indices.dtype} {tuple(indices.shape)}"
        )


def check_gate(gate_logits: Tensor | None, q: Tensor, v: Tensor) -> None:
    """Raise ValueError if there are logits of a gate and they are not floating numbers [B, Tq, H, V].

    q [B, Tq, H, K], v [B, Tk, Hkv, V].
    """
    wanted = (*q.shape[:3], v.shape[-1])
    if gate_logits is not None and (gate_logits.shape != wanted or not gate_logits.is_floating_point()):
        raise ValueError(
            f"sparse_attention needs floating gate_logits [B, Tq, H, V] = {wanted}, got {gate_logits.dtype} "
            f"{tuple(gate_logits.shape)}"
        )


# Operations and bytes, for a roofline.


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
