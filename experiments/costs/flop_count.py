"""FLOPs a token at long lengths with bounded work.

A model on the meta device is counted operator by operator, so that a mixer with a Python loop over tokens or chunks
takes as many steps as the loop has. Where a length takes too many operators, shorter ones are counted, doubling,
as far as that budget goes and until the total FLOPs of the last four lie on one polynomial of degree two in the
length, which is extrapolated to the length that was asked for. The budget is in operators, not seconds: a busy machine
prints the same table as a quiet one. Work a token that is constant or grows with the context is such a
polynomial; a block whose growth changes beyond the counted lengths goes undetected, so that extrapolated numbers are
marked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.utils._python_dispatch import TorchDispatchMode

from zoo import cost
from zoo.model import LanguageModel

OPERATORS = 50_000
"""Operators that one direct count may take: a few seconds, four times the need of a preset of reference size."""
SHORTEST = 32
TOLERANCE = 1e-9
"""Relative error of a prediction that counts as exact: totals are integers up to 2^53 in floating point."""


@dataclass(frozen=True)
class FlopCount:
    """FLOPs a token; counted_to: the longest length that was counted, below the one asked for if it is extrapolated."""

    per_token: float
    counted_to: int


def count_flops(
    model: LanguageModel, length: int, *, backward: bool = False, budget: int = OPERATORS
) -> FlopCount:
    """FLOPs a token at `length`, forward, or forward and backward; extrapolated where it takes over `budget` operators.

    Raises ValueError where a kernel refuses the call.
    """

    def total(tokens: int) -> float:
        return tokens * cost.flops_per_token(model, tokens, backward=backward)

    try:
        with _Operators(budget):
            return FlopCount(total(length) / length, length)
    except _TooMany:
        with _Operators() as operators:
            return _extrapolate(total, length, lambda: operators.count > budget / 2)


def _extrapolate(total: Callable[[int], float], length: int, enough: Callable[[], bool]) -> FlopCount:
    """From doubling lengths, once `enough` work is done and they agree; where none do, the direct count after all."""
    lengths, totals = [], []
    tokens = SHORTEST
    while tokens < length:
        lengths, totals = [*lengths[-3:], tokens], [*totals[-3:], total(tokens)]
        if (
            len(lengths) == 4
            and enough()
            and _is_exact(_quadratic(lengths[:3], totals[:3], tokens), totals[3])
        ):
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


class _TooMany(Exception):
    """The budget of a count is used up."""


class _Operators(TorchDispatchMode):
    """Counts the operators that run inside it. Raises _TooMany at the first one over the budget, if there is one."""

    def __init__(self, budget: int | None = None) -> None:
        super().__init__()
        self.budget, self.count = budget, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        if self.budget is not None and self.count > self.budget:
            raise _TooMany
        return function(*args, **(kwargs or {}))
