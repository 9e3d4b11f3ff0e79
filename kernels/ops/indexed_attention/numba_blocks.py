"""The fused form by Numba: sequences, and parts of each, on as many threads as PyTorch may use."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.numba_common import in_parts, parts_of
from kernels.numba_common.layout import array, arrays, by_kv_head, by_query, keys_by_position
from kernels.ops.indexed_attention import numba_layout as layout
from kernels.ops.indexed_attention.fused_tensors import Indexer, Output
from kernels.ops.indexed_attention.numba_backward import Gradients, backward
from kernels.ops.indexed_attention.numba_forward import Attended, Indexed, Learned, Results, forward
from kernels.ops.lightning_topk.adaptive import AdaptiveK


def attend(
    q: Tensor, k: Tensor, v: Tensor, indexer: Indexer, rule: AdaptiveK, kind: str, scale: float, learns: bool
) -> tuple[Output, Tensor, Indexer | None]:
    """The output, the loss [] in nats, and where the indexer `learns` the loss's gradients, else None.

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], all fp32; kind: the scores, "sigmoid" or "relu".
    """
    q, k, v, *tensors = (x.detach() for x in (q, k, v, *indexer))
    indexer, parts, numbers = Indexer(*tensors), parts_of(len(q)), layout.rule_numbers(rule)
    given, found = layout.attended(q, k, v, scale), layout.empty_results(q, v)
    index = layout.indexed(indexer, kind)
    learned = layout.empty_gradients(index, parts, learns)
    constants = (array(index.bias), np.float32(index.tau.item()), index.sigmoid)

    def work(b: int, part: int) -> None:
        (d_q, d_w), (d_k, sums) = (
            arrays((learned.q, learned.w), b),
            arrays((learned.k, learned.sums), b, part),
        )
        own = Learned(d_q, d_k, d_w, sums)
        inputs = (Attended(*arrays(given, b)), Indexed(*arrays(index[:4], b), *constants))
        forward(*inputs, numbers, Results(*arrays(found, b)), own, learns, part, parts)

    in_parts(work, len(q))
    o = by_query(found.o, (*q.shape[:3], v.shape[3]))
    output = Output(o, found.lse.flatten(0, 1).flatten(1).unsqueeze(-1), found.bits)
    loss, grads = layout.gradients(indexer, learned)
    return output, loss, grads if learns else None


def attend_backward(
    grad: Tensor, out: Output, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for q, k, v from that of o, grad [B, T, H, V]; all fp32."""
    grad, q, k, v, o, lse, bits = (x.detach() for x in (grad, q, k, v, *out))
    kv_heads, parts = k.shape[2], parts_of(len(q))
    given = layout.attended(q, k, v, scale)
    lse = lse.view(len(q), kv_heads, q.shape[1], -1)
    found = Results(by_kv_head(o, kv_heads), lse, bits)
    d_out, d_q = by_kv_head(grad, kv_heads), torch.zeros_like(given.q)
    d_k, d_v = (x.new_zeros(len(q), parts, *x.shape[1:]) for x in (given.k, given.v))

    def work(b: int, part: int) -> None:
        own = Gradients(array(d_q[b]), *arrays((d_k, d_v), b, part))
        inputs = (Attended(*arrays(given, b)), Results(*arrays(found, b)))
        backward(*inputs, array(d_out[b]), own, part, parts)

    in_parts(work, len(q))
    dk, dv = keys_by_position(d_k.sum(1), k), keys_by_position(d_v.sum(1), v)
    return by_query(d_q.mul_(scale), q.shape), dk, dv
