"""Inputs that the tests of `path_attention` and `path_step` share."""

import torch
import torch.nn.functional as F
from torch import Tensor

from support.kernel_cases import normal, qkv


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def path(batch: int, time: int, heads: int = 4, width: int = 8) -> tuple[Tensor, Tensor]:
    """w of length 1 and β, a third of them each uniform in (0, 2), at 1 (a projection) and at 2 (a reflection)."""
    w = F.normalize(normal(batch, time, heads, width, seed=4), dim=-1)
    beta, kind = 2 * uniform(batch, time, heads, seed=5), uniform(batch, time, heads, seed=6)
    return w, beta.where(kind < 2 / 3, 2.0).where(kind > 1 / 3, 1.0)


def gates(batch: int, time: int, heads: int = 4) -> Tensor:
    return -uniform(batch, time, heads, seed=7)


def inputs(batch: int, time: int, heads: int = 4, kv_heads: int | None = None, width: int = 8, **options):
    """q, k, v, w, beta, g."""
    q, k, v = qkv(batch, time, heads=heads, kv_heads=kv_heads, width=width, **options)
    return q, k, v, *path(batch, time, kv_heads or heads, width), gates(batch, time, heads)
