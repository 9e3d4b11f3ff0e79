"""Tensors as compiled kernels read them: by sequence and KV head, rows filled up with zeros to whole vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor
from torch.nn.functional import pad

WIDTH = 32
"""What the length of a row is a multiple of."""


def by_kv_head(x: Tensor, kv_heads: int) -> Tensor:
    """[B, T, H, D] -> [B, Hkv, T, G', D']; zero heads fill up a multiple of four where those cost less than a rest."""
    x = x.unflatten(2, (kv_heads, -1)).transpose(1, 2)
    heads = -x.shape[3] % 4 if x.shape[3] % 4 > 1 else 0
    return padded(x, -x.shape[4] % WIDTH, heads).contiguous()


def padded(x: Tensor, columns: int, rows: int = 0) -> Tensor:
    """x [..., R, D] with zeros behind its last two axes; x itself, where PyTorch would copy it, if there are none."""
    return pad(x, (0, columns, 0, rows)) if columns or rows else x


def by_query(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `by_kv_head`: [B, Hkv, T, G', D'] -> [B, T, H, D], the shape that is wanted, contiguous."""
    kv_heads, (_, _, heads, width) = x.shape[1], shape
    return x[:, :, :, : heads // kv_heads, :width].transpose(1, 2).flatten(2, 3).contiguous()


def keys_by_head(x: Tensor) -> Tensor:
    """[B, T, Hkv, D] -> [B, Hkv, T, D']."""
    return padded(x.transpose(1, 2), -x.shape[3] % WIDTH).contiguous()


def keys_by_position(x: Tensor, like: Tensor) -> Tensor:
    """The inverse of `keys_by_head`: [B, Hkv, T, D'] -> [B, T, Hkv, D], as `like` is shaped, contiguous."""
    return x[..., : like.shape[3]].transpose(1, 2).contiguous()


def arrays(tensors: Sequence[Tensor], *at: int) -> tuple[np.ndarray, ...]:
    """The part `at` of every tensor [B, ...], as an array of the same memory."""
    return tuple(array(x[at]) for x in tensors)


def array(x: Tensor) -> np.ndarray:
    """The same memory as an array, which keeps x for as long as it lives.

    Not x.numpy(), which forbids for good that the memory is given back: FSDP does that to gathered parameters.
    """
    return np.from_dlpack(x)
