"""The short convolution that several mixers apply after their projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import kernels
from zoo import context_parallel
from zoo.context import Context


class ShortConvolution(nn.Module):
    """Depthwise causal convolution without bias, then an activation.

        y_t = act( Σ_{i=0…k−1} weight[:, i] ⊙ x_{t−(k−1)+i} ),     x = 0 before a sequence's first token

    width: number of channels; kernel_size: k; activation: None or "silu"; backend: kernels' backend.
    The weight [width, k] starts uniform in ±1/√k, as PyTorch's own depthwise convolution does.
    Decode state: the last k−1 inputs, [B, width, k−1], oldest first.
    """

    def __init__(
        self, width: int, kernel_size: int, activation: str | None = None, *, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.activation = activation
        self.backend = backend
        self.weight = nn.Parameter(torch.empty(width, kernel_size))
        self.init_weights(None)

    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw the weight from the generator, uniform in ±1/√k."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """Whole sequences: x [B, T, width] -> y [B, T, width], in x's dtype."""
        before = context_parallel.inputs_before(ctx, x, self.weight.shape[1] - 1)
        options = {"activation": self.activation, "cu_seqlens": ctx.cu_seqlens, "backend": self.backend}
        y, _ = kernels.short_conv(x, self.weight, state=before, **options)
        return y

    def init_state(self, batch_size: int, device: Any = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """The inputs before the first token: zeros [B, width, k−1]."""
        width, kernel_size = self.weight.shape
        return torch.zeros(batch_size, width, kernel_size - 1, device=device, dtype=dtype)

    def extend(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The next tokens: x [B, T, width] -> (y [B, T, width], the state after them)."""
        return kernels.short_conv(
            x, self.weight, activation=self.activation, state=state, backend=self.backend
        )
