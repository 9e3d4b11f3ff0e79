"""Masks of the keys that queries selected: numbers to add or multiply, and packed, eight a byte, for the backward.

PyTorch fills under a mask of booleans one number at a time; arithmetic on a mask of numbers runs in vectors.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

HIDDEN = -1e30
"""Added to the scores of keys that are hidden: a softmax gives them exactly 0, and no infinity meets another."""


def numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """1 where the mask bool [..., S] is true, else 0: [..., S] of this dtype."""
    return mask.view(torch.uint8).to(dtype)


def penalties(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask bool [..., S] is true, else HIDDEN: [..., S] of this dtype."""
    return numbers(mask, dtype).sub_(1).mul_(-HIDDEN)


def pack(mask: Tensor) -> Tensor:
    """Bits uint8 [..., ⌈S/8⌉] of a mask bool [..., S]."""
    return torch.from_numpy(np.packbits(mask.numpy(), axis=-1))


def unpack(bits: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """`numbers` [..., S] of a mask, from its bits uint8 [..., ⌈S/8⌉]: 1 where it was true, else 0.

    keys: S.
    """
    return torch.from_numpy(np.unpackbits(bits.numpy(), axis=-1, count=keys)).to(dtype)
