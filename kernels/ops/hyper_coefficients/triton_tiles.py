"""Common parts of the kernels of the coefficients of hyper-connections: loads, scales and biases, and sizes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_common.device import padded
from kernels.triton_common.masked_tiles import load_matrix

TOKEN_TILES = [
    triton.Config({"BT": tokens, "BK": width}, num_warps=warps, num_stages=stages)
    for tokens, width, warps, stages in ((64, 64, 4, 3), (64, 32, 8, 2), (128, 64, 8, 3), (32, 64, 8, 3))
]


@triton.jit
def load_wide(x, row, column, ROWS, COLUMNS):
    """x [ROWS, COLUMNS] at these places in fp32; 0 outside."""
    return load_matrix(x, row, column, ROWS, COLUMNS).to(tl.float32)


@triton.jit
def affine(scale, bias, row, ROWS, N: tl.constexpr):
    """The part that each row of φ belongs to (0 pre, 1 post, 2 res), its scale and its bias, [ROWS]."""
    part = tl.minimum(row // N, 2)
    s = tl.load(scale + part).to(tl.float32)
    return part, s[None], tl.load(bias + row, mask=row < ROWS, other=0.0).to(tl.float32)[None]


def sizes_of(x: Tensor, phi: Tensor) -> dict[str, int]:
    """Return the sizes of a call with x [B, T, n, D] and phi [2n + m, n·D] by name, as kernels take them."""
    rows, width = phi.shape
    return {"TOKENS": x.numel() // width, "K": width, "ROWS": rows, "BN": padded(rows)}


def precision_of(x: Tensor, phi: Tensor) -> str:
    """Return the `tl.dot` precision that keeps all digits of x [B, T, n, D] and phi [2n + m, n·D]."""
    return "tf32" if x.dtype == phi.dtype != torch.float32 else "tf32x3"
