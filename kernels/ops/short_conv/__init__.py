"""Short convolution: the public function and its backends."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Operation, always, on_cuda, only_when_named
from kernels.ops.short_conv.reference import short_conv_reference
from kernels.ops.short_conv.torch_ops import short_conv_torch
from kernels.triton_common import lazily, refusal

__all__ = ["short_conv"]


def _refuses(x: Tensor, weight: Tensor, *, state: Tensor | None = None, **_options) -> str | None:
    return refusal(x, weight, state)


OPERATION = Operation("short_conv")
OPERATION.register(
    "triton",
    lazily("kernels.ops.short_conv.triton_ops", "short_conv_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", short_conv_torch, suits=always)
OPERATION.register("reference", short_conv_reference, suits=only_when_named)


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
        raise ValueError(f"short_conv knows the activations None and 'silu', not {activation!r}")
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
