"""The options of rotary positions that mixers share: frequencies for longer texts, and the part that turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import kernels
from zoo.errors import UserError
from zoo.options import added, at_least, even_width, one_of, positive


@dataclass(frozen=True)
class Rotation:
    """Rotary positions of a mixer, with the arguments of `kernels.rope_each`."""

    base: float
    scaling: kernels.RopeScaling | None = None
    width: int | None = None
    backend: str = "auto"

    def __call__(self, xs: Sequence[Tensor], positions: Tensor) -> tuple[Tensor, ...]:
        """Tensors [B, T, H_i, K] at positions int64 [T] or [B, T] -> the tensors with rotated pairs."""
        options = {"scaling": self.scaling, "width": self.width, "backend": self.backend}
        return kernels.rope_each(xs, positions, self.base, **options)


SCALINGS = {
    "none": (),
    "linear": ("rope_factor",),
    "llama3": ("rope_factor", "rope_length", "rope_slow", "rope_fast"),
    "yarn": ("rope_factor", "rope_length", "rope_slow", "rope_fast", "rope_mscale"),
}
"""rope_scaling -> the options that it reads."""
NEEDED = ("rope_factor", "rope_length")
FAST = {"llama3": 4.0, "yarn": 32.0}


@dataclass
class RopeOptions:
    """Rotary frequencies for texts longer than those of the pretraining (kernels.RopeScaling has the equations).

    rope_scaling: "none", "linear" (all frequencies divided by rope_factor), "llama3" or "yarn" (the slow ones divided,
    the fast ones kept); rope_factor: by how much texts are longer; rope_length: tokens of a text of the pretraining;
    rope_slow: pairs that turn at most so often in these are divided (None: once); rope_fast: pairs that turn at least
    so often stay (None: 4 times with llama3, 32 with yarn); rope_mscale: m, yarn multiplies rotated queries and keys by
    0.1·m·ln(rope_factor) + 1, scores so by its square (None: 1).
    """

    rope_scaling: str = added("none", before="none")
    rope_factor: float | None = added(None, before=None)
    rope_length: int | None = added(None, before=None)
    rope_slow: float | None = added(None, before=None)
    rope_fast: float | None = added(None, before=None)
    rope_mscale: float | None = added(None, before=None)


@dataclass
class PartialRopeOptions(RopeOptions):
    """rope_dim: rotate only so many channels of a head, the first ones, an even number (None: all).

    The rest as in RopeOptions.
    """

    rope_dim: int | None = added(None, before=None)


def rotation(
    options: Any,
    block: str,
    width: int,
    *,
    rotates: bool = True,
    scores: float = 1.0,
    backend: str = "auto",
) -> Rotation | None:
    """Rotary positions with the options of a block whose heads have so many channels; None where nothing rotates.

    scores: all scores are multiplied by this number squared elsewhere; rotated vectors are by so much less; backend: of
    `kernels.rope_each`. Raises UserError for options that do not fit each other or the width.
    """
    positive(options.rope_base, f"{block}.rope_base")
    turned = options.rope_dim if isinstance(options, PartialRopeOptions) else None
    if not rotates:
        if turned is not None or options.rope_scaling != "none":
            raise UserError(
                f"{block} has no rotary positions that rope_dim or rope_scaling could change; leave both out"
            )
        return None
    if turned is None:
        even_width(width, block)
    elif turned % 2 or not 2 <= turned <= width:
        raise UserError(f"{block}.rope_dim={turned} must be even, from 2 to the head width {width}")
    return Rotation(options.rope_base, _scaling(options, block, scores), turned, backend)


def mscale(factor: float, m: float) -> float:
    """YaRN's 0.1·m·ln(factor) + 1, by which it multiplies queries and keys; 1 for a factor below 1."""
    return 0.1 * m * math.log(max(1.0, factor)) + 1


def _scaling(options: RopeOptions, block: str, scores: float) -> kernels.RopeScaling | None:
    kind = options.rope_scaling
    one_of(kind, tuple(SCALINGS), f"{block}.rope_scaling")
    for key in SCALINGS["yarn"]:
        value, read = getattr(options, key), key in SCALINGS[kind]
        if value is not None and not read:
            raise UserError(
                f"{block}.{key}={value} has no effect with {block}.rope_scaling={kind}; leave it out"
            )
        if value is None and read and key in NEEDED:
            raise UserError(f"{block}.rope_scaling={kind} needs {block}.{key}")
    if kind == "none":
        return None
    factor, length = options.rope_factor, options.rope_length or 0
    at_least(factor, 1, f"{block}.rope_factor")
    at_least(options.rope_length, 1, f"{block}.rope_length")
    slow, fast = options.rope_slow or 1.0, options.rope_fast or FAST.get(kind, 0.0)
    if kind != "linear" and not 0 < slow < fast < math.inf:
        raise UserError(f"{block}.rope_slow={slow} must be above 0 and below {block}.rope_fast={fast}")
    if kind == "yarn" and not options.rope_base > 1:
        raise UserError(
            f"{block}.rope_base={options.rope_base} must be above 1 for {block}.rope_scaling=yarn"
        )
    m = 1.0 if options.rope_mscale is None else options.rope_mscale
    at_least(m, 0, f"{block}.rope_mscale")
    amplitude = mscale(factor, m) / scores if kind == "yarn" else 1.0
    return kernels.RopeScaling(kind, float(factor), length, slow, fast, amplitude)
