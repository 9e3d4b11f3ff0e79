"""Held-out text that probes read: the same windows of the validation split for every model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from experiments.data import Split


def spread_windows(split: Split, count: int, length: int) -> tuple[Tensor, Tensor]:
    """Windows in equal distances over the whole split: tokens and targets (the next tokens), int64 [N, T].

    T = length, or less where the split is shorter; N = count, or as many as there are without overlap. A window
    begins wherever it falls, as in training on one stream; documents in it see each other.
    """
    last = len(split.tokens) - 1
    length = min(length, last)
    count = min(count, last // length)
    starts = np.linspace(0, last - length, count).astype(int)
    whole = torch.from_numpy(
        np.stack([split.tokens[start : start + length + 1] for start in starts]).astype(np.int64)
    )
    return whole[:, :-1], whole[:, 1:]


def document_start(split: Split, bos: int, length: int) -> Tensor:
    """The start of the first document that is long enough, int64 [1, T], with its separator as the first token.

    Where none is, the start of the split, with whatever follows the first document.
    """
    tokens = np.asarray(split.tokens)
    starts = np.flatnonzero(tokens == bos)
    ends = np.append(starts[1:], len(tokens))
    long_enough = starts[ends - starts >= length]
    start = int(long_enough[0]) if len(long_enough) else 0
    return torch.from_numpy(tokens[start : start + length].astype(np.int64))[None]
