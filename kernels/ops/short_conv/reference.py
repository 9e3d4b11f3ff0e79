"""Short convolution by its definition: a window that slides over every sequence, token by token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
