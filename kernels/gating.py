"""The sigmoid gate on an attention's output, from its logits."""

from __future__ import annotations

import torch
from torch import Tensor


def gated(o: Tensor, logits: Tensor | None) -> Tensor:
    """Return o ⊙ σ(logits) in o's dtype, computed in at least fp32; o itself where there are no logits.

    Saved for the backward are the result, which whatever reads it saves as well, and the logits; neither o nor σ:

        ō = ȳ ⊙ σ(l),   l̄ = ȳ ⊙ o ⊙ σ(l) ⊙ (1 − σ(l)) = ȳ ⊙ y ⊙ (1 − σ(l))

    o, logits  [..., K], one shape, any floating dtypes
    """
    return o if logits is None else _Gated.apply(o, logits)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o: Tensor, logits: Tensor) -> Tensor:
        wide = torch.promote_types(o.dtype, torch.float32)
        y = (o.to(wide) * torch.sigmoid(logits.to(wide))).to(o.dtype)
        ctx.save_for_backward(y, logits)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        y, logits = ctx.saved_tensors
        wide = torch.promote_types(y.dtype, torch.float32)
        gate, grad = torch.sigmoid(logits.to(wide)), grad.to(wide)
        return (grad * gate).to(y.dtype), (grad * y * (1 - gate)).to(logits.dtype)
