"""The short convolution: the public function, its definition and PyTorch's form.

y_t = act( Σ_{i=0…k−1} weight[:, i] ⊙ x_{t−(k−1)+i} )
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.autograd import l2norm
from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

# The definition: a window that slides over every sequence, token by token.


def short_conv_reference(
    x: Tensor,
    weight: Tensor,
    *,
    activation: str | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute y_t = act(Σ_i weight[:, i] ⊙ window_i), the window being the last k inputs of t's own sequence."""
    sequences = list(x) if cu_seqlens is None else list(x[0].split(cu_seqlens.diff().tolist()))
    if state is None:
        state = x.new_zeros(len(sequences), x.shape[2], weight.shape[1] - 1)
    # Here, not at every token: autograd adds up the weight's gradient in the dtype that tokens use it in.
    wide = weight.to(torch.promote_types(x.dtype, torch.float32))
    results = [
        _one_sequence(tokens, wide, before, activation)
        for tokens, before in zip(sequences, state, strict=True)
    ]
    outputs = [y for y, _ in results]
    y = torch.stack(outputs) if cu_seqlens is None else torch.cat(outputs).unsqueeze(0)
    return y, torch.stack([after for _, after in results])


def _one_sequence(
    tokens: Tensor, weight: Tensor, state: Tensor, activation: str | None
) -> tuple[Tensor, Tensor]:
    """tokens [n, D], weight [D, k] in at least fp32, state [D, k−1] -> y [n, D], the state after them."""
    state, outputs = state.to(tokens.dtype), []
    for token in tokens:
        window = torch.cat([state, token[:, None]], dim=1)
        y = (window.to(weight.dtype) * weight).sum(dim=1)
        outputs.append((F.silu(y) if activation == "silu" else y).to(tokens.dtype))
        state = window[:, 1:]
    return torch.stack(outputs) if outputs else tokens, state


# k shifted products over an axis on which every sequence starts with its state.


def short_conv_torch(
    x: Tensor,
    weight: Tensor,
    *,
    activation: str | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute `kernels.short_conv` by k shifted products: x [B, T, D], weight [D, k] -> y [B, T, D], state [N, D, k−1].

    Without cu_seqlens: one axis a sequence. Packed: one axis for all, k−1 rows of state before every sequence.
    No shape depends on the values of cu_seqlens, so that both can be traced.
    """
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    rows = weight.shape[1] - 1
    before = x.new_zeros(sequences, rows, x.shape[2]) if state is None else state.to(x.dtype).transpose(1, 2)
    if cu_seqlens is None:
        axis = torch.cat([before, x], dim=1)
        y, after = _convolve(axis, weight), axis[:, x.shape[1] :]
    else:
        y, after = _packed(x[0], before, weight, cu_seqlens.long())
        y = y.unsqueeze(0)
    y = F.silu(y) if activation == "silu" else y
    # A copy, for a view would keep all tokens in memory as long as the state lives.
    return y.to(x.dtype), after.transpose(1, 2).clone(memory_format=torch.contiguous_format)


def _convolve(axis: Tensor, weight: Tensor) -> Tensor:
    """axis [..., T+k−1, D], weight [D, k] -> [..., T, D] in at least fp32; row t reads rows t … t+k−1."""
    wide = torch.promote_types(axis.dtype, torch.float32)
    axis, taps = axis.to(wide), weight.to(wide).t()
    time = axis.shape[-2] - len(taps) + 1
    y = axis.narrow(-2, 0, time) * taps[0]
    for i in range(1, len(taps)):
        y = torch.addcmul(y, axis.narrow(-2, i, time), taps[i])
    return y


def _packed(x: Tensor, before: Tensor, weight: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, D], before [N, k−1, D] -> y [T, D] in at least fp32, the states after [N, k−1, D]."""
    sequences, rows, width = before.shape
    number = torch.arange(sequences, device=x.device)
    token = torch.arange(x.shape[0], device=x.device)
    sequence = torch.searchsorted(cu[1:].contiguous(), token, right=True)
    first = token + sequence * rows  # a token's window on the axis begins here and ends at the token itself
    row = torch.arange(rows, device=x.device)
    starts = (cu[:-1] + number * rows)[:, None] + row
    ends = (cu[1:] + number * rows)[:, None] + row
    axis = x.new_zeros(x.shape[0] + sequences * rows, width)
    axis = axis.index_copy(0, first + rows, x).index_copy(0, starts.flatten(), before.flatten(0, 1))
    return _convolve(axis, weight).index_select(0, first), axis[ends]


# Queries, keys and values of heads.


def _of_heads(form: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """`short_conv_heads` by a form of `short_conv`."""

    def run(x: Tensor, weight: Tensor | None, *, heads: tuple[int, int, int], **options):
        y = F.silu(x) if weight is None else form(x, weight, activation="silu", **options)[0]
        width = x.shape[2] // sum(heads)
        q, k, v = (
            part.unflatten(-1, (-1, width)) for part in y.split([count * width for count in heads], -1)
        )
        return l2norm(q), l2norm(k), v

    return run


# The public functions and their backends.

__all__ = ["short_conv", "short_conv_heads"]


def _refuses(x: Tensor, weight: Tensor | None, *, state: Tensor | None = None, **_options) -> str | None:
    return refusal(x, weight, state)


OPERATION = Operation("short_conv")
OPERATION.register(
    "triton",
    lazily("kernels.ops.short_conv_triton", "short_conv_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", short_conv_torch, suits=always)
OPERATION.register("reference", short_conv_reference, suits=only_when_named)


def _refuses_heads(x: Tensor, weight: Tensor | None, *, heads, state: Tensor | None = None, **_options):
    return refusal(x, weight, state, widths=(x.shape[2] // sum(heads),))


HEADS = Operation("short_conv_heads")
HEADS.register(
    "triton",
    lazily("kernels.ops.short_conv_triton", "short_conv_heads_triton"),
    refuses=_refuses_heads,
    suits=on_cuda,
)
HEADS.register("torch", _of_heads(short_conv_torch), suits=always)
HEADS.register("reference", _of_heads(short_conv_reference), suits=only_when_named)


def short_conv(
    x: Tensor,
    weight: Tensor,
    *,
    activation: str | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute a depthwise causal convolution over time, without bias.

        y_t = act( Σ_{i=0…k−1} weight[:, i] ⊙ x_{t−(k−1)+i} )     weight[:, k−1] multiplies the current token

    x           [B, T, D], any floating dtype
    weight      [D, k], k ≥ 1; any floating dtype
    activation  None or "silu"
    state       [N, D, k−1], the inputs before the first token of every sequence, oldest first (None: zeros)
    cu_seqlens  int32 [N+1], 0 … T: B = 1, and tokens [cu[i], cu[i+1]) are a sequence of their own
                (N = B without it)
    backend     auto, triton (what auto takes on a GPU), torch, reference (a loop over tokens)
    returns     y [B, T, D] and the states after the last tokens [N, D, k−1], always, both in x's dtype

    Products and sums in at least fp32; a state is inputs and nothing else, so that no dtype can round it.

    Raises ValueError for shapes that do not fit, an unknown activation or an unknown backend.
    """
    check_short_conv(x, weight, activation, state, cu_seqlens)
    return OPERATION(x, weight, activation=activation, state=state, cu_seqlens=cu_seqlens, backend=backend)


def short_conv_heads(
    x: Tensor,
    weight: Tensor | None,
    *,
    heads: tuple[int, int, int],
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute queries, keys and values of heads by a short convolution, SiLU and an L2 norm.

        s = SiLU(short_conv(x));   q, k = s · rsqrt(Σ s² + 1e-6) of each head;   v = s

    x           [B, T, D], the channels of all heads of queries, then of keys, then of values; any floating dtype
    weight      [D, k], or None: no convolution
    heads       how many of each, (Hq, Hk, Hv), at least 1; all of width K = D / (Hq + Hk + Hv)
    state, cu_seqlens  as of `short_conv`
    backend     auto, triton (what auto takes on a GPU: one kernel each way, which saves its inputs alone; K at most
                256), torch, reference
    returns     q, k, v [B, T, Hq, K], [B, T, Hk, K], [B, T, Hv, K] in x's dtype

    Raises ValueError for shapes that do not fit and for an unknown backend.
    Source: Yang et al. 2024 (arXiv:2412.06464); Kimi Linear (arXiv:2510.26692).
    """
    if len(heads) != 3 or min(heads) < 1 or x.dim() != 3 or x.shape[2] % sum(heads):
        raise ValueError(
            f"short_conv_heads needs x [B, T, D] and three numbers of heads by whose sum D divides, got "
            f"{tuple(x.shape)} and heads={tuple(heads)}"
        )
    if weight is None and state is not None:
        raise ValueError(
            "short_conv_heads takes no state without a weight: there is no convolution to continue"
        )
    check_short_conv(x, x.new_empty(x.shape[2], 1) if weight is None else weight, "silu", state, cu_seqlens)
    return HEADS(x, weight, heads=tuple(heads), state=state, cu_seqlens=cu_seqlens, backend=backend)


def check_short_conv(
    x: Tensor, weight: Tensor, activation: str | None, state: Tensor | None, cu_seqlens: Tensor | None
) -> None:
    """Raise ValueError if the arguments of `short_conv` do not fit each other.

    They are x [B, T, D], weight [D, k], state [N, D, k−1] or None, cu_seqlens [N+1] or None (B = 1), and an activation
    None or "silu".
    """
    if x.dim() != 3 or weight.dim() != 2 or weight.shape[0] != x.shape[2] or weight.shape[1] < 1:
        raise ValueError(
            f"short_conv needs x [B, T, D] and weight [D, k], got {tuple(x.shape)}, {tuple(weight.shape)}"
        )
    if activation not in (None, "silu"):
        raise ValueError(f"short_conv needs activation=None or 'silu', got {activation!r}")
    if cu_seqlens is not None:
        _check_boundaries(x, cu_seqlens)
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    wanted = (sequences, x.shape[2], weight.shape[1] - 1)
    if state is not None and state.shape != wanted:
        raise ValueError(f"short_conv needs state [N, D, k-1] = {wanted}, got {tuple(state.shape)}")


def _check_boundaries(x: Tensor, cu_seqlens: Tensor) -> None:
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.dtype != torch.int32:
        raise ValueError(
            f"short_conv needs cu_seqlens int32 [N+1], got {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
    if x.shape[0] != 1:
        raise ValueError(f"short_conv with cu_seqlens needs B = 1, got x {tuple(x.shape)}")
    # Reading the values on a GPU would wait for it, and a trace has none.
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        ends = cu_seqlens.tolist()
        if ends[0] != 0 or ends[-1] != x.shape[1] or ends != sorted(ends):
            raise ValueError(f"short_conv needs cu_seqlens to rise from 0 to T = {x.shape[1]}, got {ends}")


# Operations and bytes, for a roofline.


def work(
    x: Tensor,
    weight: Tensor,
    *,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    **_options,
) -> list[Work]:
    """Count the operations and bytes of a call: k products and sums an element, and three times as many backward.

    x [B, T, D], weight [D, k], state [N, D, k−1] or None.
    """
    products = 2 * x.numel() * weight.shape[1]
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    states = x.element_size() * sequences * x.shape[2] * (weight.shape[1] - 1)
    return [
        Work("short_conv", "forward", products, 2 * nbytes(x) + nbytes(weight, state) + states),
        Work("short_conv", "backward", 3 * products, 3 * nbytes(x) + 2 * nbytes(weight, state) + states),
    ]
