"""Softmax attention: the public function, its definition, PyTorch's form and libraries' kernels.

o_i = Σ_j softmax_j(scale·q_i·k_j)·v_j     over the keys j that i sees

With a sink logit the softmax has one entry more, whose weight goes to no value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import register_flop_formula

from kernels.autograd import attention_flops
from kernels.dispatch import (
    Operation,
    always,
    check_attention,
    in_autocast_dtype,
    only_sizes,
    only_when_named,
    without_autocast,
)
from kernels.packing import Rectangles, boundaries, token_sequences
from kernels.plugins import flash, varlen

# The definition: every score, an explicit mask, a softmax. For reading and for truth.


def attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention o_i = Σ_j softmax_j(scale·q_i·k_j)·v_j over the keys j that i sees; at least fp32, memory Tq × Tk.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V]; window, at least 1: the newest tokens that a query sees;
    cu_seqlens integer [N+1] (B = 1); sinks [H]. Returns [B, Tq, H, V] in q's dtype. Query i stands at position
    i + Tk − Tq.
    """
    mask = visible(q.shape[1], k.shape[1], causal, window, cu_seqlens, q.device)
    return masked_attention(q, k, v, mask, scale, sinks)


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None, sinks: Tensor | None = None
) -> Tensor:
    """Attention [B, Tq, H, V] in q's dtype over the keys where a mask is true, computed in at least fp32.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V]; mask: bool, broadcast to [B, H, Tq, Tk]; sinks [H]: a logit
    more in every softmax of a head, whose weight is dropped.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    with without_autocast(q):
        scores = torch.einsum("bihd,bjhd->bhij", q.to(dtype), k.to(dtype)) * scale
        scores = scores.masked_fill(~mask, -torch.inf)
        if sinks is not None:
            sink = sinks.to(dtype).view(-1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sink], -1)
        weights = scores.softmax(dim=-1)[..., : k.shape[1]]
        return torch.einsum("bhij,bjhd->bihd", weights, v.to(dtype)).to(q.dtype)


def visible(
    queries: int,
    keys: int,
    causal: bool,
    window: int | None,
    cu_seqlens: Tensor | None,
    device: torch.device,
) -> Tensor:
    """Return whether query i, which stands at position i + Tk − Tq, sees key j, bool [Tq, Tk]."""
    i = torch.arange(queries, device=device)[:, None] + keys - queries
    j = torch.arange(keys, device=device)[None, :]
    mask = j <= i if causal else torch.ones(queries, keys, dtype=torch.bool, device=device)
    if window is not None:
        mask = mask & (i - j < window)
    if cu_seqlens is not None:
        sequence = token_sequences(cu_seqlens, keys)
        mask = mask & (sequence[:, None] == sequence[None, :])
    return mask


# PyTorch's scaled_dot_product_attention, in memory linear in T: dense, windowed and within segments.
#
# Calls are brought into the forms that its fused kernels take: no mask at all, or a mask for one block of queries.
# Segments (packed sequences, timelines) are contiguous parts of one token axis, computed as batches of SDPA calls.
# Their lengths are data: `torch.compile(fullgraph=True)` cannot trace through them and the meta device does not have
# them, so both see two operators that are opaque to tracing, with a shape, a gradient and a cost.

SMALLEST_BLOCK, LARGEST_BLOCK = 64, 256
"""Queries a block where a mask is needed."""
WITHOUT_PLANS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
"""What a decode step takes on a GPU: not cuDNN, which plans anew for every number of keys, and each step has its own.

A step of 14 layers took 49 ms on an H200 with cuDNN and 11.9 ms without."""
FEW = 64
"""Keys below which they may be fewer than a vector of any CPU holds numbers."""


def attention_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute `kernels.attention` by SDPA: in blocks of queries under a window, by segments where packed.

    q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], any floating dtype; cu_seqlens integer [N+1] (B = 1);
    sinks [H]. Returns [B, Tq, H, V] in q's dtype.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    options = {"causal": causal, "window": window, "scale": scale, "sink": sinks is not None}
    if sinks is not None:
        # A channel more: the sink's key, which `_with_sink` adds, is 1 there and 0 elsewhere, the keys of tokens are 0.
        own = (sinks / scale).to(q.dtype).view(-1, 1).expand(*q.shape[:3], 1)
        q, k = torch.cat([q, own], -1), F.pad(k, (0, 1))
    if cu_seqlens is None:
        return dense_attention(q, k, v, **options)
    return segment_attention(q[0], k[0], v[0], cu_seqlens, **options).unsqueeze(0)


def _with_sink(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [B, Hkv, Tk, ...] behind the key of the sink, 1 in its last channel, and a value of zeros."""
    key = F.pad(k.new_ones(1), (k.shape[-1] - 1, 0)).expand(*k.shape[:2], 1, -1)
    return torch.cat([key, k], 2), F.pad(v, (0, 0, 1, 0))


def query_block(window: int) -> int:
    """Queries of a block under a window: about as many as the window, so that half of a block is of use."""
    return min(max(window, SMALLEST_BLOCK), LARGEST_BLOCK)


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    scale: float | None,
    sink: bool = False,
) -> Tensor:
    """Attention softmax(scale·q·kᵀ + mask)·v of q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V].

    returns [B, Tq, H, V]

    Query i stands at position i + Tk − Tq. Memory is linear in Tq and Tk, window or not. sink: every query sees one key
    more, which is 1 in the last channel and 0 in others, and has no value.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    width = v.shape[-1]
    q, k, v = _one_width(q, k, v)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = _attend(q, k, v, causal, window, scale, sink)
    return out.transpose(1, 2)[..., :width]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None, scale: float, sink: bool
) -> Tensor:
    queries, keys = q.shape[2], k.shape[2]
    if window is not None and window < keys:
        return _attend_in_blocks(q, k, v, window, scale, sink)
    whole = queries == keys
    if sink:  # the oldest key of all, so that the causal mask lets every query see it
        (k, v), keys = _with_sink(k, v), keys + 1
    if queries == 1:
        return _one_query(q, k, v, scale)
    if not causal:
        return _sdpa(q, k, v, scale)
    if queries == keys:
        return _sdpa(q, k, v, scale, is_causal=True)
    if not whole and (queries <= LARGEST_BLOCK or 2 * queries < keys):
        return _attend_in_blocks(q, k, v, keys, scale)
    # A mask would be queries × keys; SDPA's own causal mask is free, but aligns q with the start of k: rows of no use
    # are computed, keys²/2 scores in all.
    aligned = F.pad(q, (0, 0, keys - queries, 0))
    return _sdpa(aligned, k, v, scale, is_causal=True)[:, :, -queries:]


def _attend_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, window: int, scale: float, sink: bool = False
) -> Tensor:
    """Attend blocks of queries, each to its own block of keys and as many earlier ones as the window reaches.

    Keys are split once and blocks put together from the parts: of a slice a block autograd would make a gradient of
    the whole key axis a block, which is quadratic in time.
    """
    queries, offset = q.shape[2], k.shape[2] - q.shape[2]
    block = min(query_block(window), queries)
    earlier = -(-(window - 1) // block)
    first = min(offset, window - 1)  # keys before the first query that it sees
    sizes = [first, *(min(block, queries - start) for start in range(0, queries, block))]
    keys, values = (x[:, :, offset - first :].split(sizes, 2) for x in (k, v))
    most = max(earlier * block, (earlier - 1) * block + first)
    mask, outputs = _mask(block, most, window, q), []
    for i, part in enumerate(q.split(block, 2)):
        seen = slice(max(0, i + 1 - earlier), i + 2)
        near, rows = torch.cat(keys[seen], 2), part.shape[2]
        hidden, told = mask[:rows, most + rows - near.shape[2] : most + rows], torch.cat(values[seen], 2)
        if sink:
            hidden, (near, told) = F.pad(hidden, (1, 0)), _with_sink(near, told)
        outputs.append(_sdpa(part, near, told, scale, attn_mask=hidden))
    return torch.cat(outputs, dim=2)


def _mask(rows: int, before: int, window: int, like: Tensor) -> Tensor:
    """An additive mask: 0 where row i sees column j, which is i + before − j tokens older, else −∞; q's dtype.

    Every block takes a part of this one mask, so that autograd keeps one and not one a block.
    """
    age = torch.arange(rows, device=like.device)[:, None] + before
    age = age - torch.arange(before + rows, device=like.device)
    hidden = (age < 0) | (age >= window)
    return torch.zeros(age.shape, device=like.device, dtype=like.dtype).masked_fill(hidden, -torch.inf)


def _one_query(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    if not q.is_cuda:
        return _sdpa(q, k, v, scale)
    with sdpa_kernel(list(WITHOUT_PLANS)):
        return _sdpa(q, k, v, scale)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return attention [B, H, Tq, V] of q [B, H, Tq, K], k [B, Hkv, Tk, K] and v [B, Hkv, Tk, V]; NaN where a score is.

    Where all scores of a query are NaN, PyTorch 2.13 gives 0 on a CPU for fewer keys than a vector holds numbers (16 of
    fp32), if there is no attn_mask. That is as F.scaled_dot_product_attention takes it; Tq ≤ Tk where is_causal.
    """
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    if attn_mask is not None or q.device.type != "cpu" or k.shape[-2] >= FEW:
        return out
    keys = k.isnan().any(-1).repeat_interleave(q.shape[1] // k.shape[1], 1)
    seen = keys.cummax(-1).values if is_causal else keys.any(-1, keepdim=True)
    lost = q.isnan().any(-1) | (seen[..., : q.shape[2]] if is_causal else seen)
    return torch.where(lost.unsqueeze(-1), torch.nan, out)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, **options) -> Tensor:
    shared = q.shape[1] != k.shape[1]
    return sdpa(q, k, v, scale=scale, enable_gqa=shared, **options)


def _one_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pad q, k or v to one width where K ≠ V: the fused kernels need it, and without them memory is quadratic.

    On the meta device nothing is stored, and operations should be counted as the definition has them.
    """
    missing = q.shape[-1] - v.shape[-1]
    if missing == 0 or q.is_meta:
        return q, k, v
    if missing > 0:
        return q, k, F.pad(v, (0, missing))
    return F.pad(q, (0, -missing)), F.pad(k, (0, -missing)), v


def segment_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    sink: bool = False,
) -> Tensor:
    """Softmax attention in which a token sees only the tokens of its own segment.

    q           [M, H, K]; k [M, Hkv, K]; v [M, Hkv, V]
    cu_seqlens  integer [S+1], 0 = cu[0] ≤ … ≤ cu[S] = M; segment i is [cu[i], cu[i+1]), possibly empty
    sink        as of `dense_attention`, in every segment
    returns     [M, H, V]

    Work is Σ n² score entries for segments of length n, apart from padding among segments shorter than 256
    tokens; memory is linear in M. Under `torch.compile` and on the meta device it is one operator, whose
    operations are counted for segments of equal length: M²/S entries.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if only_sizes(q):
        return segment_attention_op(q, k, v, cu_seqlens, causal, window, scale, sink)
    options = {"causal": causal, "window": window, "scale": scale, "sink": sink}
    return segment_attention_eager(q, k, v, cu_seqlens, **options)


def segment_attention_eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    *,
    causal: bool,
    window: int | None,
    scale: float,
    sink: bool = False,
) -> Tensor:
    """`segment_attention` with one SDPA call a batch of segments. Reads cu_seqlens on the host.

    q [M, H, K], k [M, Hkv, K], v [M, Hkv, V], cu_seqlens [S+1] -> [M, H, V] in q's dtype.
    """
    # Without a causal mask padding would be attended to.
    axis = Rectangles.of(cu_seqlens, q.shape[1], may_pad=causal).axis()
    if not axis.shapes:
        return v.new_zeros(*q.shape[:2], v.shape[-1])
    batches = zip(*(axis.spread(x) for x in (q, k, v)), strict=True)
    options = {"causal": causal, "window": window, "scale": scale, "sink": sink}
    return axis.collect([dense_attention(*x, **options) for x in batches])


@torch.library.custom_op("archzoo::segment_attention", mutates_args=())
def segment_attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    causal: bool,
    window: int | None,
    scale: float,
    sink: bool = False,
) -> Tensor:
    """Compute `segment_attention_eager` behind one operator.

    q [M, H, K], k [M, Hkv, K], v [M, Hkv, V], cu_seqlens [S+1] -> [M, H, V] in q's dtype.
    """
    options = {"causal": causal, "window": window, "scale": scale, "sink": sink}
    return segment_attention_eager(q, k, v, cu_seqlens, **options)


@segment_attention_op.register_fake
def _(q, k, v, cu_seqlens, causal, window, scale, sink=False):
    return q.new_empty(*q.shape[:2], v.shape[-1])


@torch.library.custom_op("archzoo::segment_attention_backward", mutates_args=())
def segment_attention_backward_op(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    causal: bool,
    window: int | None,
    scale: float,
    sink: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [M, H, K], k [M, Hkv, K] and v [M, Hkv, V] in their dtypes, for grad [M, H, V] of the output.

    Computes the forward again, so that it needs only the inputs.
    """

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        options = {"causal": causal, "window": window, "scale": scale, "sink": sink}
        return segment_attention_eager(q, k, v, cu_seqlens, **options)

    # Operators run below autograd, where requires_grad does nothing; torch.func brings its own.
    _, backward = torch.func.vjp(forward, q, k, v)
    dq, dk, dv = backward(grad)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@segment_attention_backward_op.register_fake
def _(grad, q, k, v, cu_seqlens, causal, window, scale, sink=False):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _save(ctx, inputs, output):
    q, k, v, cu_seqlens, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, cu_seqlens)


def _backward(ctx, grad):
    return *segment_attention_backward_op(grad, *ctx.saved_tensors, *ctx.options), *(None,) * 5


segment_attention_op.register_autograd(_backward, setup_context=_save)


def balanced_entries(tokens: int, segments: int, window: int | None) -> int:
    """Score entries of `tokens` in equal segments: n² each; under a window those of its blocks of queries."""
    length = tokens / max(segments, 1)
    return round(tokens * (length if window is None else min(length, window + query_block(window) - 1)))


@register_flop_formula(torch.ops.archzoo.segment_attention)
def _forward_flops(q, k, v, cu_seqlens, causal, window, scale, sink=False, *, out_shape=None, **_) -> int:
    return attention_flops(q[1] * balanced_entries(q[0], cu_seqlens[0] - 1, window), q[2], v[2])


@register_flop_formula(torch.ops.archzoo.segment_attention_backward)
def _backward_flops(
    grad, q, k, v, cu_seqlens, causal, window, scale, sink=False, *, out_shape=None, **_
) -> int:
    return 2 * _forward_flops(q, k, v, cu_seqlens, causal, window, scale)


# A library's kernel for packed sequences, as a backend of the operation.


def register_plugin(operation: Operation, name: str, plugin, suits: Callable[..., bool]) -> None:
    """Register a module of kernels.plugins as a backend of attention; a batch is packed sequences of one length."""

    def run(q, k, v, *, causal=True, window=None, scale=None, cu_seqlens=None, sinks=None) -> Tensor:
        batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
        cu_q, cu_k = (boundaries(x, cu_seqlens) for x in (q, k))
        out = plugin.packed_attention(
            *(x.flatten(0, 1) for x in (q, k, v)),
            cu_q,
            cu_k,
            queries,
            keys,
            causal=causal,
            window=window,
            scale=q.shape[-1] ** -0.5 if scale is None else scale,
        )
        return out.unflatten(0, (batch, queries))

    def refuses(q, k, v, *, window=None, sinks=None, **_) -> str | None:
        return plugin.refuses(q, k, v, window) if sinks is None else "it takes no sink logits"

    operation.register(name, run, refuses=refuses, suits=suits)


# The public function and its backends.

__all__ = ["attention"]


def _packed_or_windowed(q, k, v, *, window=None, cu_seqlens=None, **_) -> bool:
    return window is not None or cu_seqlens is not None


OPERATION = Operation("attention")
# PyTorch's dense SDPA picks among several kernels by itself; varlen is for what it cannot express.
register_plugin(OPERATION, "varlen", varlen, suits=_packed_or_windowed)
OPERATION.register("torch", attention_torch, suits=always)
register_plugin(OPERATION, "flash_attn", flash, suits=only_when_named)
OPERATION.register("reference", attention_reference, suits=only_when_named)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    sinks: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Softmax attention with grouped heads, sliding windows, packed sequences and sinks.

        o_i = Σ_j softmax_j(scale · q_i·k_j) · v_j     over the keys j that query i sees
        with sinks: o_i = Σ_j exp(scale · q_i·k_j) · v_j / (exp(sink) + Σ_j exp(scale · q_i·k_j))

    q           [B, Tq, H, K], any floating dtype; query head h uses KV head ⌊h·Hkv/H⌋
    k, v        [B, Tk, Hkv, K], [B, Tk, Hkv, V]; Hkv divides H. Query i stands at position i + Tk − Tq: a
                shorter q aligns with the end of k
    causal      keys after the query are hidden (then Tq ≤ Tk)
    window      the number of keys a query sees, itself included; needs causal
    scale       None: K^(−1/2)
    cu_seqlens  int32 [N+1], 0 … T: B = 1, Tq = Tk, and tokens [cu[i], cu[i+1]) are a sequence of their own
    sinks       [H] floating, a logit for each query head, to which attention may go without reading a value; None: none
    backend     auto, torch (SDPA), varlen (PyTorch's FlashAttention: CUDA, 16 bit), flash_attn (the package,
                version 2, 3 or 4), reference (definition, any dtype)
    returns     [B, Tq, H, V] in q's dtype (under autocast: autocast's)

    Softmax in at least fp32. Memory is linear in T, except for `reference`.
    Raises ValueError for shapes that do not fit, and for a backend that is unknown or cannot serve the call.
    Source: Vaswani et al. 2017, equation 1; Ainslie et al. 2023 (grouped heads); OpenAI 2025 (arXiv:2508.10925; sinks).
    """
    check_attention("attention", q, k, v, causal=causal, window=window, cu_seqlens=cu_seqlens)
    if sinks is not None and sinks.shape != q.shape[2:3]:
        raise ValueError(
            f"attention needs sinks {tuple(q.shape[2:3])}, a logit a head, got {tuple(sinks.shape)}"
        )
    q, k, v = in_autocast_dtype(q, k, v)
    options = {"causal": causal, "window": window, "scale": scale, "cu_seqlens": cu_seqlens, "sinks": sinks}
    return OPERATION(q, k, v, **options, backend=backend)
