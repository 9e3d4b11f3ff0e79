"""Random inputs for benchmarks, of the sizes of a case; on the meta device only their shapes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 4096
"""Tokens whose indices are drawn at once, which bounds the memory."""


class InputFactory:
    """Makes the inputs of one call: `batch` sequences of `length` tokens, data in `dtype`, gates in fp32.

    Data and gates require gradients. Numbers depend on torch's seed alone.
    """

    def __init__(self, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> None:
        self.batch, self.length, self.device, self.dtype = batch, length, device, dtype

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal [B, T, *shape]."""
        return self.weight(self.batch, self.length, *shape, dtype=dtype)

    def weight(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Standard normal [*shape]."""
        dtype = self.dtype if dtype is None else dtype
        if self._shapes_only:
            return torch.empty(shape, dtype=dtype, device="meta")
        return torch.randn(shape, dtype=dtype, device=self.device).requires_grad_()

    def unit(self, *shape: int) -> Tensor:
        """Vectors [B, T, *shape] of length 1, as keys are."""
        x = self.normal(*shape)
        return x if self._shapes_only else F.normalize(x.detach(), dim=-1).requires_grad_()

    def log_gate(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Log decays [B, T, *shape], a few percent a token."""
        x = self.normal(*shape, dtype=dtype)
        return x if self._shapes_only else F.logsigmoid(x.detach() + 3).requires_grad_()

    def gate(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Gates [B, T, *shape] between 0 and 1."""
        x = self.normal(*shape, dtype=dtype)
        return x if self._shapes_only else torch.sigmoid(x.detach()).requires_grad_()

    def ones(self, *shape: int) -> Tensor:
        """fp32 ones [*shape]."""
        x = torch.ones(shape, device=self.device)
        return x if self._shapes_only else x.requires_grad_()

    def random_integers(self, among: int, *shape: int) -> Tensor:
        """int64 [B, T, *shape], uniform in [0, among)."""
        size = self.batch, self.length, *shape
        if self._shapes_only:
            return torch.empty(size, dtype=torch.int64, device="meta")
        return torch.randint(among, size, device=self.device)

    def subset(self, among: int, count: int) -> Tensor:
        """int64 [B, T, count]: for every token `count` different numbers in [0, among)."""
        if self._shapes_only:
            return self.random_integers(among, count)
        return torch.rand(self.batch, self.length, among, device=self.device).topk(count, -1).indices

    def causal_indices(self, count: int) -> Tensor:
        """int32 [B, T, count]: `count` different positions s ≤ t, spread evenly; −1 where there are fewer."""
        out = torch.empty(self.batch, self.length, count, dtype=torch.int32, device=self.device)
        if self._shapes_only:
            return out
        place = torch.arange(count, device=self.device)
        for start in range(0, self.length, ROWS):
            t = torch.arange(start, min(start + ROWS, self.length), device=self.device)[:, None]
            # One in each of `count` equal parts of the positions up to t, so that none comes twice.
            first, end = (edge * (t + 1) // count for edge in (place, place + 1))
            inside = torch.rand(self.batch, len(t), count, device=self.device)
            drawn = torch.minimum(first + (inside * (end - first)).long(), end - 1)
            few = torch.where(place <= t, place, -1).expand_as(drawn)
            out[:, start : start + ROWS] = torch.where(t + 1 > count, drawn, few)
        return out

    @property
    def _shapes_only(self) -> bool:
        return self.device.type == "meta"
