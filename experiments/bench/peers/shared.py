"""Parts that several peers share: a library's functions, and the dense attention that a sparse one replaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments.bench.cases import Call
from kernels.plugins import first_of, look_up

Make = Callable[[list[Call]], Callable[[], Any]]


def needs(module: str, device: torch.device) -> str | None:
    """Why a library's module of CUDA kernels cannot be used on a device; None if it can. Imported only for a GPU."""
    if device.type != "cuda":
        return f"{module} needs a CUDA device"
    _, why = look_up(module)
    return why and f"{module} {why}"


def of_library(*places: tuple[str, str]) -> Callable[..., Any]:
    """A library's function, from the first of the places (module, name) that has it. Raises ImportError."""
    function, why = first_of(*places)
    if function is None:
        raise ImportError(why)
    return function


def dense_inputs(calls: list[Call]) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of the attention among a case's calls, as full causal attention takes them."""
    (call,) = [c for c in calls if c.operation.endswith("attention")]
    q, k, v = call.arguments[:3]
    return (q, *v) if isinstance(k, tuple) and isinstance(v, tuple) else (q, k, v)


# Not of path_attention: it attends to everything, too, and does more.
ATTENTIONS = (
    "sparse_attention",
    "sparse_attention with its indexer",
    "sparse_attention with its indexer, 64 heads to one",
    "nsa_attention",
    "nsa_attention, groups of 16",
    "timeline_attention",
)


def dense_attention_peers(attend: Callable[[Tensor, Tensor, Tensor], Any]) -> dict[str, Make]:
    """Dense attention by `attend` as the peer of every case that reads less than all of the past: makers by operation.

    attend: q [B, T, H, K], k [B, T, Hkv, K], v [B, T, Hkv, V] -> [B, T, H, V], causal.
    """

    def make(calls: list[Call]) -> Callable[[], Any]:
        q, k, v = dense_inputs(calls)
        return lambda: attend(q, k, v)

    return dict.fromkeys(ATTENTIONS, make)
