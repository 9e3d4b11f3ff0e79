"""Checks of arguments that all attention operations share, and how they deal with autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def check_attention(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    cu_seqlens: Tensor | None = None,
) -> None:
    """Raise ValueError if q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V] do not fit each other."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"{name} needs q [B, Tq, H, K], k [B, Tk, Hkv, K], v [B, Tk, Hkv, V], got {shapes}")
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ValueError(f"{name}: batch, key length, KV heads or key width differ: {shapes}")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ValueError(f"{name} needs a number of query heads divisible by the KV heads, got {shapes}")
    if causal and q.shape[1] > k.shape[1]:
        raise ValueError(f"causal {name} needs no more queries than keys, got {shapes}")
    if window is not None and (window < 1 or not causal):
        raise ValueError(f"{name} needs window ≥ 1 with causal=True, got window={window}, causal={causal}")
    if cu_seqlens is not None:
        check_packed(name, q, k, cu_seqlens)


def check_packed(name: str, q: Tensor, k: Tensor, cu_seqlens: Tensor) -> None:
    """Raise ValueError if cu_seqlens cannot pack q and k. Values are read on CPUs only."""
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2 or cu_seqlens.dtype != torch.int32:
        raise ValueError(
            f"{name} needs cu_seqlens int32 [N+1], got {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
    if q.shape[0] != 1 or q.shape[1] != k.shape[1]:
        raise ValueError(
            f"{name} with cu_seqlens needs B = 1 and Tq = Tk, got q {tuple(q.shape)}, k {tuple(k.shape)}"
        )
    # Reading the values on a GPU would wait for it, and a trace has none.
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        ends = cu_seqlens.tolist()
        if ends[0] != 0 or ends[-1] != q.shape[1] or ends != sorted(ends):
            raise ValueError(f"{name} needs cu_seqlens to rise from 0 to T = {q.shape[1]}, got {ends}")


def in_autocast_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors as autocast would hand them to SDPA, so that backends are chosen by the dtype that runs.

    Outside autocast they must agree; raises ValueError if not.
    """
    if autocasts(tensors[0]):
        dtype = torch.get_autocast_dtype(tensors[0].device.type)
        return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in tensors)
    if len({x.dtype for x in tensors}) > 1:
        raise ValueError(f"q, k, v must have one dtype, got {', '.join(str(x.dtype) for x in tensors)}")
    return tensors


def without_autocast(x: Tensor) -> AbstractContextManager:
    """A context without autocast where x lives: products have the dtype of their factors."""
    return torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on where x lives; the meta device has none, and asking it is an error."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def only_sizes(x: Tensor) -> bool:
    """Whether x has a size and no values: on the meta device, as a fake tensor, or while a compiler traces."""
    return torch.compiler.is_compiling() or x.is_meta or isinstance(x, FakeTensor)
