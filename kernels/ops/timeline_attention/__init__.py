"""Timeline attention: causal softmax attention among the tokens that a head puts on one timeline.

    o_i = w_i · Σ_j softmax_j(scale · q_i·k_j) · v_j     over j ≤ i of i's sequence with a_j = a_i, per head

Here are the definition, the public function, its checks, its backends and its work for a roofline.

torch_form.py  tokens sorted by timeline, then attention within segments, PyTorch's or a library's
triton_ops.py  the same on a GPU: kernels that sort, gather, rotate and put back
"""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Operation, always, check_attention, in_autocast_dtype, on_cuda, only_when_named
from kernels.ops.attention import masked_attention, visible
from kernels.ops.timeline_attention.torch_form import MAX_TIMELINES, register_plugin, timeline_attention_torch
from kernels.plugins import flash, varlen
from kernels.rotary import rope
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

# The definition: one mask over all pairs of tokens.


def timeline_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    assignment: Tensor,
    *,
    n_timelines: int,
    rope_base: float | None = None,
    weight: Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Attention in which token i sees j ≤ i of its sequence iff head h put both on one timeline; memory T × T.

    The only form that checks the assignment: raises ValueError if a value is outside [0, n_timelines).

    q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V], assignment integer [B, T, H], weight [B, T, H] or None
    -> [B, T, H, V] in q's dtype.
    """
    if assignment.numel() and not 0 <= int(assignment.min()) <= int(assignment.max()) < n_timelines:
        raise ValueError(
            f"assignment must lie in [0, {n_timelines}), got {assignment.min():d} … {assignment.max():d}"
        )
    time = q.shape[1]
    heads_first = assignment.transpose(1, 2)
    together = heads_first[..., :, None] == heads_first[..., None, :]
    mask = together & visible(time, time, True, None, cu_seqlens, q.device)
    if rope_base is not None:
        group = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
        position = (mask.sum(dim=-1) - 1).transpose(1, 2)
        q, k = (rope(x, position, rope_base, backend="reference") for x in (q, k))
    out = masked_attention(q, k, v, mask, scale)
    return out if weight is None else out * weight[..., None].to(out.dtype)


__all__ = ["timeline_attention"]


def _refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    assignment: Tensor,
    *,
    n_timelines: int = 1,
    rope_base: float | None = None,
    weight: Tensor | None = None,
    **_options,
) -> str | None:
    if n_timelines > MAX_TIMELINES:
        return f"sorts by at most {MAX_TIMELINES} timelines, got {n_timelines}"
    if rope_base is not None and q.shape[-1] % 2:
        return f"needs an even width to rotate, got {q.shape[-1]}"
    return refusal(q, k, v, weight, widths=(q.shape[-1], v.shape[-1]))


OPERATION = Operation("timeline_attention")
OPERATION.register(
    "triton",
    lazily("kernels.ops.timeline_attention.triton_ops", "timeline_attention_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
register_plugin(OPERATION, "varlen", varlen, suits=always)
OPERATION.register("torch", timeline_attention_torch, suits=always)
register_plugin(OPERATION, "flash_attn", flash, suits=only_when_named)
OPERATION.register("reference", timeline_attention_reference, suits=only_when_named)


def timeline_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    assignment: Tensor,
    *,
    n_timelines: int,
    rope_base: float | None = None,
    weight: Tensor | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Causal softmax attention within (sequence, head, timeline).

        o_i = w_i · Σ_j softmax_j(scale · q_i·k_j) · v_j     over j ≤ i of i's sequence with a_j = a_i, per head

    q           [B, T, H, K], any floating dtype; query head h uses KV head ⌊h·Hkv/H⌋
    k, v        [B, T, Hkv, K], [B, T, Hkv, V]; Hkv divides H
    assignment  integer [B, T, H], a_i: the timeline in [0, n_timelines) on which a query head puts a token.
                Only `reference` reports values out of range; elsewhere the result is undefined
    rope_base   given: q and k are first rotated by the token's position inside its timeline (0 for the first
                token there, in every sequence anew); None: no rotation
    weight      [B, T, H], any floating dtype, w_i; None: 1
    scale       None: K^(−1/2)
    cu_seqlens  int32 [N+1] for packed sequences (B = 1)
    backend     auto, triton (what auto takes on a GPU: kernels sort, rotate and put back around the attention
                of varlen, flash_attn or torch, whichever takes the call first; up to 64 timelines), torch,
                varlen (CUDA, 16 bit), flash_attn (if installed), reference (T × T memory)
    returns     [B, T, H, V] in q's dtype (under autocast: autocast's)

    Balanced timelines cost T²/n_timelines score entries a head, in memory linear in T. On a GPU the attention inside is
    PyTorch's or flash-attn's, whose backward adds the gradients of q atomically: their last bits repeat only under
    `torch.use_deterministic_algorithms(True)`.
    Raises ValueError for shapes that do not fit, and for a backend that is unknown or cannot serve the call.
    """
    check_attention("timeline_attention", q, k, v, cu_seqlens=cu_seqlens)
    check_assignment(q, k, assignment, n_timelines)
    check_weight(assignment, weight)
    q, k, v = in_autocast_dtype(q, k, v)
    return OPERATION(
        q,
        k,
        v,
        assignment,
        n_timelines=n_timelines,
        rope_base=rope_base,
        weight=weight,
        scale=scale,
        cu_seqlens=cu_seqlens,
        backend=backend,
    )


def check_assignment(q: Tensor, k: Tensor, assignment: Tensor, n_timelines: int) -> None:
    """Raise ValueError unless assignment is integer [B, T, H], n_timelines ≥ 1, q [B, T, H, K], k [B, T, Hkv, K]."""
    if q.shape[1] != k.shape[1]:
        raise ValueError(f"timeline_attention needs Tq = Tk, got q {tuple(q.shape)}, k {tuple(k.shape)}")
    if assignment.shape != q.shape[:3]:
        raise ValueError(
            f"timeline_attention needs assignment [B, T, H] = {tuple(q.shape[:3])}, "
            f"got {tuple(assignment.shape)}"
        )
    if assignment.dtype.is_floating_point or n_timelines < 1:
        raise ValueError(
            f"timeline_attention needs an integer assignment and n_timelines ≥ 1, got {assignment.dtype}, "
            f"{n_timelines}"
        )


def check_weight(assignment: Tensor, weight: Tensor | None) -> None:
    """Raise ValueError if there is a weight and it is not floating [B, T, H], as assignment [B, T, H] is."""
    if weight is not None and (weight.shape != assignment.shape or not weight.dtype.is_floating_point):
        raise ValueError(
            f"timeline_attention needs floating weight [B, T, H] = {tuple(assignment.shape)}, got {weight.dtype} "
            f"{tuple(weight.shape)}"
        )


# Operations and bytes, for a roofline: the attention itself, and the routing around it.


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
