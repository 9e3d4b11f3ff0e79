"""What the fused forms read and write."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Indexer(NamedTuple):
    """q [B, T, HI, DI], k [B, T, DI], w [B, T, HI], bias [HI], tau []."""

    q: Tensor
    k: Tensor
    w: Tensor
    bias: Tensor
    tau: Tensor


class Output(NamedTuple):
    """o [B, T, H, V]; log-sum-exps by KV head [B·Hkv, T·G, 1]; the selection's bits [B, T, ⌈T/8⌉]."""

    o: Tensor
    lse: Tensor
    bits: Tensor
