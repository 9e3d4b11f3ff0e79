"""The random numbers of one sequence of a task."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from experiments.data.batches import extend_hash, state_after

_BITS = 62
_STANDARD = NormalDist()


class Draws:
    """Random numbers that are a function of the words given, in the order in which they are asked for.

    NumPy's own generators may change their stream between versions; `counter_hash` cannot, so a task's sequences are
    the same on every machine.
    """

    def __init__(self, *words: int) -> None:
        self._state = state_after(*words)
        self._used = 0

    def _next(self, count: int) -> np.ndarray:
        """So many integers in [0, 2^62), int64."""
        places = np.arange(self._used, self._used + count)
        self._used += count
        return extend_hash(self._state, places)

    def below(self, limit: int, count: int) -> np.ndarray:
        """Integers in [0, limit), int64 [count], independent and equally likely (to limit/2^62)."""
        return self._next(count) % limit

    def uniform(self, count: int) -> np.ndarray:
        """Numbers in [0, 1), float64 [count]."""
        return self._next(count) / float(1 << _BITS)

    def normal(self, count: int) -> np.ndarray:
        """Standard normal numbers, float64 [count], by the inverse of their distribution."""
        inside = np.clip(self.uniform(count), 1e-18, 1 - 1e-16)
        return np.array([_STANDARD.inv_cdf(float(u)) for u in inside])

    def distinct(self, limit: int, count: int) -> np.ndarray:
        """Different integers in [0, limit), int64 [count], in random order, every choice equally likely."""
        return _smallest(self._next(limit), count)

    def weighted(self, weights: np.ndarray, count: int) -> np.ndarray:
        """Different places of `weights`, int64 [count], drawn one after another in proportion to the weights left.

        Each place waits a time −ln(u)/weight; the first to come are taken (Efraimidis and Spirakis 2006).
        """
        waiting = -np.log1p(-self.uniform(len(weights))) / weights
        return _smallest(waiting, count)


def _smallest(numbers: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` smallest numbers, ascending."""
    if 4 * count < len(numbers):
        found = np.argpartition(numbers, count)[:count]
        return found[np.argsort(numbers[found], kind="stable")]
    return np.argsort(numbers, kind="stable")[:count]
