"""What the tests of `path_step` share: a token over a cache, and storage around the cache that nobody may touch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from support.kernel_cases import normal

WITHOUT = {
    "PaTH-FoX": (),
    "PaTH": ("g", "forgotten"),
    "FoX": ("w", "beta"),
    "attention": ("w", "beta", "g", "forgotten"),
}


def token(
    tokens: int,
    batch: int = 2,
    heads: int = 2,
    kv_heads: int | None = None,
    width: int = 8,
    value_width: int = 0,
) -> dict[str, Tensor]:
    """Arguments of `path_step` by name, fp64; the newest token is forgotten by 0."""
    kv_heads = kv_heads or heads
    age = torch.arange(tokens, dtype=torch.float64).flip(0) / tokens
    forgotten = -age * (6 + normal(batch, heads, tokens, seed=6))  # by 6 or so of the oldest
    return {
        "q": normal(batch, heads, width, seed=1),
        "keys": normal(batch, kv_heads, tokens, width, seed=2),
        "values": normal(batch, kv_heads, tokens, value_width or width, seed=3),
        "w": F.normalize(normal(batch, kv_heads, width, seed=4), dim=-1),
        "beta": 2 * torch.sigmoid(normal(batch, kv_heads, seed=5)),
        "g": F.logsigmoid(normal(batch, heads, seed=7)),
        "forgotten": forgotten,
    }


def within(x: Tensor, before: int = 2, behind: int = 3) -> tuple[Tensor, Tensor]:
    """Storage full of NaN with x [B, heads, n, ...] on its third axis, and the view of it that holds x."""
    storage = x.new_full((*x.shape[:2], before + x.shape[2] + behind, *x.shape[3:]), float("nan"))
    view = storage[:, :, before : before + x.shape[2]]
    view.copy_(x)
    return storage, view


def untouched(storage: Tensor, before: int = 2, behind: int = 3) -> bool:
    """Whether what stands around the view is as it was."""
    around = storage[:, :, :before], storage[:, :, storage.shape[2] - behind :]
    return all(bool(x.isnan().all()) for x in around)
