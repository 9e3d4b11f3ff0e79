"""FLOPs a token at long lengths in bounded time.

A model on the meta device is counted operator by operator, so that a mixer with a Python loop over tokens or chunks
takes as many steps as the loop has. Where counting at a length takes too long, shorter ones are counted, doubling,
as far as the time goes and until the total FLOPs of the last four lie on one polynomial of degree two in the length,
which is followed to the length that was asked for. Work a token that is constant or grows with the context is such a
polynomial; a block whose work bends between the lengths that were counted and that one is not seen, so that figures
made in this way are marked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch.utils._python_dispatch import TorchDispatchMode

from zoo import cost
from zoo.model import LanguageModel

LIMIT_S = 5.0
"""Seconds that one direct count may take."""
SHORTEST = 32
TOLERANCE = 1e-9
"""Relative error of a prediction that counts as exact: totals are integers up to 2^53 in floating point."""


@dataclass(frozen=True)
class FlopCount:
    """FLOPs a token; counted_to: the longest length that was counted, below the one asked for if it is extrapolated."""

    per_token: float
    counted_to: int


def count_flops(
    model: LanguageModel, length: int, *, backward: bool = False, limit_s: float = LIMIT_S
) -> FlopCount:
    """FLOPs a token at `length`, forward, or forward and backward; counted, or extrapolated where that takes too long.

    Raises ValueError where a kernel refuses the call.
    """

    def total(tokens: int) -> float:
        return tokens * cost.flops_per_token(model, tokens, backward=backward)

    try:
        with _TimeLimit(limit_s):
            return FlopCount(total(length) / length, length)
    except _TooSlow:
        return _extrapolate(total, length, limit_s)


def _extrapolate(total: Callable[[int], float], length: int, limit_s: float) -> FlopCount:
    """From doubling lengths, once half the time is used and they agree; where none do, the direct count after all."""
    lengths, totals = [], []
    tokens, began = SHORTEST, time.monotonic()
    while tokens < length:
        lengths, totals = [*lengths[-3:], tokens], [*totals[-3:], total(tokens)]
        enough = len(lengths) == 4 and time.monotonic() - began > limit_s / 2
        if enough and _is_exact(_quadratic(lengths[:3], totals[:3], tokens), totals[3]):
            return FlopCount(_quadratic(lengths[1:], totals[1:], length) / length, tokens)
        tokens *= 2
    return FlopCount(total(length) / length, length)


def _quadratic(lengths: list[int], totals: list[float], at: int) -> float:
    """Lagrange's polynomial through three points, at another length."""
    value = 0.0
    for i, here in enumerate(lengths):
        others = [x for j, x in enumerate(lengths) if j != i]
        value += totals[i] * (at - others[0]) * (at - others[1]) / ((here - others[0]) * (here - others[1]))
    return value


def _is_exact(predicted: float, counted: float) -> bool:
    return abs(predicted - counted) <= TOLERANCE * counted


class _TooSlow(Exception):
    """The time limit of a count is over."""


class _TimeLimit(TorchDispatchMode):
    """Raises _TooSlow at the first operator after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.deadline = time.monotonic() + seconds

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if time.monotonic() > self.deadline:
            raise _TooSlow
        return function(*args, **(kwargs or {}))
