"""A grid of learning rates, and how it grows where the best is at an end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zoo.errors import UserError

LOWEST, HIGHEST = "lowest", "highest"


def check(rates: Sequence[float]) -> None:
    """Refuse a grid that nothing can be selected from. Raises UserError."""
    if len(set(rates)) < 2 or len(set(rates)) < len(rates):
        raise UserError(f"compare.rates={list(rates)} must name two rates or more, each once")
    for rate in rates:
        if not 0 < rate < math.inf:
            raise UserError(f"compare.rates has {rate}; give numbers above 0")


def beyond(rates: Sequence[float], end: str) -> float:
    """The next rate beyond an end (LOWEST or HIGHEST), by the ratio of the last two there; two significant digits."""
    ordered = sorted(rates, reverse=end == LOWEST)
    return float(f"{ordered[-1] * ordered[-1] / ordered[-2]:.2g}")


def edge(rate: float, rates: Sequence[float]) -> str:
    """The end of the rates tried that a rate is at: LOWEST, HIGHEST or ""."""
    return LOWEST if rate <= min(rates) else HIGHEST if rate >= max(rates) else ""


def farthest(rates: Sequence[float], extend: int) -> tuple[float, float]:
    """The lowest and the highest rate that a grid may grow to."""
    grown = list(rates)
    for end in (LOWEST, HIGHEST) * extend:
        grown.append(beyond(grown, end))
    return min(grown), max(grown)
