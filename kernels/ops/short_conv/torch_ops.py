"""Short convolution as k shifted products over an axis on which every sequence starts with its state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
