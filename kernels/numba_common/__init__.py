"""Common parts of the kernels that Numba compiles for a CPU.

compiled.py   the compiler and its cache, exp and log
vectors.py    vectors of 16 fp32 numbers as values, and products of queries with the rows of keys that they selected
attention.py  attention of a block of queries to lists of keys, and its gradients

The files import Numba, which takes time; what stands here does not: tensors as arrays, checks of calls, threads.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.dispatch import constant_when_traced

# Tensors as compiled kernels read them: by sequence and KV head, rows filled up with zeros to whole vectors.

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


# Checks of the calls that a kernel of Numba serves; Numba itself is imported late, as that takes time.


def refusal(*tensors: Tensor) -> str | None:
    """Return why Numba's kernels cannot take these tensors, of any shape [...]; None if they can: fp32 on a CPU."""
    for x in tensors:
        if x.device.type != "cpu":
            return f"needs tensors on a CPU, got {x.device.type}"
        if x.dtype != torch.float32:
            return f"needs float32, got {str(x.dtype).removeprefix('torch.')}"
    return fault()


@constant_when_traced
def fault() -> str | None:
    """Return why Numba compiles nothing in this process; None if it does."""
    return _fault()


@functools.cache
def _fault() -> str | None:
    try:
        numba = importlib.import_module("numba")
    except (
        Exception
    ) as error:  # it may be missing, or not get on with the versions of other packages that it finds
        return f"numba cannot be imported: {error}"
    return "NUMBA_DISABLE_JIT is set" if numba.config.DISABLE_JIT else None


# One kernel on several threads: Numba's code runs without Python's lock.


def in_parts(work: Callable[[int, int], None], sequences: int) -> None:
    """Call work(sequence, part) for `parts_of` parts of every sequence, on as many threads as PyTorch may use.

    Parts write to places of their own, so that results do not depend on which of them is first. Raises what any raises.
    """
    parts = [(b, part) for b in range(sequences) for part in range(parts_of(sequences))]
    threads = min(len(parts), torch.get_num_threads())
    if threads <= 1:
        for b, part in parts:
            work(b, part)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, b, part) for b, part in parts]:
            done.result()


def parts_of(sequences: int) -> int:
    """How many parts each of so many sequences has, so that every thread has one."""
    return math.ceil(torch.get_num_threads() / max(1, sequences))
