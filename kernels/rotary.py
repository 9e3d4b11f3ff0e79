"""Rotary position embedding."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.dispatch import only_sizes


def rope(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotate adjacent pairs of channels by an angle that grows with the position.

    (x[2i], x[2i+1]) as the complex number z_i becomes z_i · exp(j·p·base^(−2i/D)), i = 0 … D/2−1.

    x          [B, T, H, D], D even, any floating dtype
    positions  integer [T], [B, T] or [B, T, H]
    base       the slowest wavelength is about 2π·base tokens
    returns    [B, T, H, D] in x's dtype; angles and products in at least fp32

    Raises ValueError for an odd D or positions that do not fit x.
    Source: Su et al. 2021, RoFormer, equation 34.
    """
    return rope_each((x,), positions, base)[0]


def rope_each(xs: Sequence[Tensor], positions: Tensor, base: float) -> tuple[Tensor, ...]:
    """`rope` of several tensors [B, T, H_i, D] at the same positions, whose angles are computed once."""
    cos_sin = angles(positions_like(xs[0], positions), xs[0].shape[-1], base, angle_dtype(xs[0]))
    return tuple(rotate(x, *cos_sin) for x in xs)


def positions_like(x: Tensor, positions: Tensor) -> Tensor:
    """View positions with a batch, a time and a head axis that broadcast against x [B, T, H, D].

    Raises ValueError for shapes that do not fit.
    """
    if x.dim() != 4 or x.shape[-1] % 2:
        raise ValueError(f"rope needs x [B, T, H, D] with an even D, got {tuple(x.shape)}")
    batch, time, heads, _ = x.shape
    views = {1: (1, -1, 1), 2: (*positions.shape, 1), 3: tuple(positions.shape)}
    view = views.get(positions.dim())
    fits = view is not None and positions.shape in {(time,), (batch, time), (1, time), (batch, time, heads)}
    if not fits:
        raise ValueError(
            f"rope needs positions [T], [B, T] or [B, T, H] for x {tuple(x.shape)}, "
            f"got {tuple(positions.shape)}"
        )
    return positions.view(view)


def angles(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The cosines and sines of p·base^(−2i/width): two tensors [*positions.shape, width/2]."""
    # A trace, and what runs without storage, must not meet a tensor of another run.
    apart = only_sizes(positions)
    make = _frequencies.__wrapped__ if apart else _frequencies
    angle = positions.to(dtype).unsqueeze(-1) * make(width, base, positions.device, dtype)
    return angle.cos(), angle.sin()


@functools.lru_cache(maxsize=64)
def _frequencies(width: int, base: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """base^(−2i/width), i = 0 … width/2 − 1: the same for all layers and steps, some operations each time."""
    with torch.inference_mode(False):
        return base ** -(torch.arange(0, width, 2, device=device, dtype=dtype) / width)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the adjacent pairs of x [..., D] by angles with these cos and sin [..., D/2]; returns x's dtype."""
    pairs = x.to(cos.dtype).unflatten(-1, (-1, 2))
    # Complex arithmetic is four times faster on a CPU; compilers generate code for real arithmetic only.
    turned = _turn_real(pairs, cos, sin) if torch.compiler.is_compiling() else _turn(pairs, cos, sin)
    return turned.flatten(-2).to(x.dtype)


def _turn(pairs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # Complex numbers begin at even places; parts of a wider row, as of several projections in one, mostly do.
    places = (*pairs.stride()[:-1], pairs.storage_offset())
    apart = pairs.stride(-1) == 1 and not any(place % 2 for place in places)
    numbers = torch.view_as_complex(pairs if apart else pairs.contiguous())
    return torch.view_as_real(numbers * torch.complex(cos, sin))


def _turn_real(pairs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = pairs.unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)


def angle_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which the angles of x [..., K] are computed: fp32, or x's if that is wider."""
    return torch.promote_types(x.dtype, torch.float32)
