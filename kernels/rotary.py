"""Rotary position embedding."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from kernels.dispatch import Operation, always, only_sizes, only_when_named
from kernels.triton_common import lazily, refusal


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How the frequencies f_i of rotary positions change for texts longer than those of the pretraining.

        f_i ← r_i·f_i + (1 − r_i)·f_i / factor            n_i = length·f_i / 2π, the turns of pair i in the pretraining
        linear   r_i = 0
        llama3   r_i rises linearly with n_i from 0 at `slow` turns to 1 at `fast` turns
        yarn     r_i falls linearly with i from 1 at the last pair of at least `fast` turns to 0 at the first of at
                 most `slow` turns, both at whole i

    kind: linear, llama3 or yarn; factor: at least 1; length: tokens of the pretraining; amplitude: what rotated vectors
    are multiplied by, so that scores are by its square.
    Sources: position interpolation (arXiv:2306.15595); Llama 3 (arXiv:2407.21783); YaRN (arXiv:2309.00071), equations
    17 to 23.
    """

    kind: str
    factor: float
    length: int = 0
    slow: float = 1.0
    fast: float = 32.0
    amplitude: float = 1.0

    def scaled(self, frequencies: Tensor, base: float) -> Tensor:
        """base^(−2i/D), i = 0 … D/2 − 1 -> the frequencies in their place."""
        kept = self._kept(frequencies, base)
        return kept * frequencies + (1 - kept) * frequencies / self.factor

    def _kept(self, frequencies: Tensor, base: float) -> Tensor:
        """r_i."""
        if self.kind == "linear":
            return torch.zeros_like(frequencies)
        if self.kind == "llama3":
            turns = self.length * frequencies / (2 * math.pi)
            return ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        pairs = frequencies.shape[0]
        pair = torch.arange(pairs, device=frequencies.device, dtype=frequencies.dtype)
        first = max(0, math.floor(self._pair(self.fast, pairs, base)))
        last = min(2 * pairs - 1, math.ceil(self._pair(self.slow, pairs, base)))
        # Where both are one pair the ramp is a step, as published: steep, lest it divide by 0.
        return 1 - ((pair - first) / (last - first or 1e-3)).clamp(0, 1)

    def _pair(self, turns: float, pairs: int, base: float) -> float:
        """The i, no whole number, at which a pair makes so many turns in the pretraining."""
        return pairs * math.log(self.length / (2 * math.pi * turns)) / math.log(base)


def rope(
    x: Tensor,
    positions: Tensor,
    base: float,
    *,
    scaling: RopeScaling | None = None,
    width: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Rotate adjacent pairs of channels by an angle that grows with the position.

    (x[2i], x[2i+1]) as the complex number z_i becomes z_i · exp(j·p·base^(−2i/W)), i = 0 … W/2−1.

    x          [B, T, H, D], any floating dtype
    positions  integer [T], [B, T] or [B, T, H]
    base       the slowest wavelength is about 2π·base tokens
    scaling    other frequencies, and an amplitude (None: those above)
    width      W, even: the first W channels are rotated, the others stay (None: D)
    backend    auto, triton (what auto takes on a GPU: one kernel each way; D even and at most 256, positions [T] or
               [B, T]), torch, reference
    returns    [B, T, H, D] in x's dtype; angles and products in at least fp32

    Raises ValueError for an odd W or positions that do not fit x.
    Source: Su et al. 2021, RoFormer, equation 34.
    """
    return rope_each((x,), positions, base, scaling=scaling, width=width, backend=backend)[0]


def rope_each(
    xs: Sequence[Tensor],
    positions: Tensor,
    base: float,
    *,
    scaling: RopeScaling | None = None,
    width: int | None = None,
    backend: str = "auto",
) -> tuple[Tensor, ...]:
    """`rope` of several tensors [B, T, H_i, D] at the same positions, whose angles are computed once."""
    turned = xs[0].shape[-1] if width is None else width
    at = positions_like(xs[0][..., :turned], positions)
    cos_sin = _angles_once(positions, at, turned, base, angle_dtype(xs[0]), scaling)
    return OPERATION(xs, *cos_sin, backend=backend)


def rope_torch(xs: Sequence[Tensor], *cos_sin: Tensor) -> tuple[Tensor, ...]:
    """Compute `kernels.rope_each`. xs [B, T, H_i, D]; cos, sin [1 or B, T, 1 or H, W/2], and cos + j·sin."""
    turned = 2 * cos_sin[0].shape[-1]
    if turned == xs[0].shape[-1]:
        return tuple(rotate(x, *cos_sin) for x in xs)
    return tuple(torch.cat([rotate(x[..., :turned], *cos_sin), x[..., turned:]], -1) for x in xs)


def rope_reference(xs: Sequence[Tensor], cos: Tensor, sin: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors [B, T, H_i, D] with each pair (a, b) of the first W channels as (a·c − b·s, a·s + b·c)."""
    width, out = 2 * cos.shape[-1], []
    for x in xs:
        pairs = x[..., :width].to(cos.dtype).unflatten(-1, (-1, 2))
        out.append(torch.cat([_turn_real(pairs, cos, sin).flatten(-2).to(x.dtype), x[..., width:]], -1))
    return tuple(out)


def _refuses(xs: Sequence[Tensor], cos: Tensor, *_: Tensor) -> str | None:
    if (reason := refusal(*xs, widths=xs[0].shape[-1:])) is not None:
        return reason
    if cos.shape[2] > 1 or xs[0].shape[-1] % 2 or len(xs) > 3:
        return "needs at most three tensors of an even width, and positions [T] or [B, T]"
    return None


OPERATION = Operation("rope")
OPERATION.register(
    "triton",
    lazily("kernels.ops.rope_triton", "rope_triton"),
    refuses=_refuses,
    suits=lambda xs, *_: xs[0].is_cuda,
)
OPERATION.register("torch", rope_torch, suits=always)
OPERATION.register("reference", rope_reference, suits=only_when_named)


_KEPT = WeakIdKeyDictionary()
"""For positions that are still in use, their version and by options the results of `angles`, and those as a complex."""


def _angles_once(positions: Tensor, at: Tensor, *options: Any) -> tuple[Tensor, ...]:
    """`angles(at, *options)`, then the complex number cos + j·sin; once for all layers that rotate by these positions.

    at: a view of the positions.
    """
    if only_sizes(positions) or positions.is_inference():
        return angles(at, *options)
    version, kept = _KEPT.get(positions, (None, {}))
    if version != positions._version:
        kept = {}
        _KEPT[positions] = positions._version, kept
    if options not in kept:
        with torch.inference_mode(False):
            cos, sin = angles(at, *options)
            kept[options] = cos, sin, torch.complex(cos, sin)
    return kept[options]


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


def angles(
    positions: Tensor, width: int, base: float, dtype: torch.dtype, scaling: RopeScaling | None = None
) -> tuple[Tensor, Tensor]:
    """The cosines and sines of p·base^(−2i/width), scaled by option: two tensors [*positions.shape, width/2].

    Where all rows of positions are one, by its strides, so are those of the result: [1, ...].
    """
    if positions.dim() > 1 and len(positions) > 1 and positions.stride(0) == 0:
        positions = positions[:1]
    # A trace, and what runs without storage, must not meet a tensor of another run.
    apart = only_sizes(positions)
    make = _frequencies.__wrapped__ if apart else _frequencies
    angle = positions.to(dtype).unsqueeze(-1) * make(width, base, positions.device, dtype, scaling)
    cos, sin = angle.cos(), angle.sin()
    if scaling is None or scaling.amplitude == 1:
        return cos, sin
    return cos * scaling.amplitude, sin * scaling.amplitude


@functools.lru_cache(maxsize=64)
def _frequencies(
    width: int, base: float, device: torch.device, dtype: torch.dtype, scaling: RopeScaling | None
) -> Tensor:
    """base^(−2i/width), i = 0 … width/2 − 1: the same for all layers and steps, some operations each time."""
    with torch.inference_mode(False):
        plain = base ** -(torch.arange(0, width, 2, device=device, dtype=dtype) / width)
        return plain if scaling is None else scaling.scaled(plain, base)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, turn: Tensor | None = None) -> Tensor:
    """Rotate the adjacent pairs of x [..., D] by angles with these cos and sin [..., D/2]; returns x's dtype.

    turn: cos + j·sin, complex; None: made of them.
    """
    pairs = x.to(cos.dtype).unflatten(-1, (-1, 2))
    # Complex arithmetic is four times faster on a CPU; compilers generate code for real arithmetic only.
    turned = _turn_real(pairs, cos, sin) if torch.compiler.is_compiling() else _turn(pairs, cos, sin, turn)
    return turned.flatten(-2).to(x.dtype)


def _turn(pairs: Tensor, cos: Tensor, sin: Tensor, turn: Tensor | None) -> Tensor:
    # Complex numbers begin at even places; parts of a wider row, as of several projections in one, mostly do.
    places = (*pairs.stride()[:-1], pairs.storage_offset())
    apart = pairs.stride(-1) == 1 and not any(place % 2 for place in places)
    numbers = torch.view_as_complex(pairs if apart else pairs.contiguous())
    return torch.view_as_real(numbers * (torch.complex(cos, sin) if turn is None else turn))


def _turn_real(pairs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = pairs.unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)


def angle_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which the angles of x [..., K] are computed: fp32, or x's if that is wider."""
    return torch.promote_types(x.dtype, torch.float32)
