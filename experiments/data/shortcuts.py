"""Shortcuts of a task: the share that is right by copying from a fixed spot of the sequence, no key read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from experiments.data.task_registry import IGNORE

PLACE, DISTANCE, ORDER = WAYS = "place", "distance", "order"
"""Where to copy from: a place for each place asked at; so many tokens back; the m-th value for each n-th question."""


class Shortcut(NamedTuple):
    """A way of copying, one of WAYS, and its share of right answers."""

    way: str
    accuracy: float


class _Asked(NamedTuple):
    """Questions at one place: their case [n], spots that the tokens up to it are at, and which are the answer [n, t].

    A spot of −1 cannot be copied from.
    """

    case: np.ndarray
    spot: np.ndarray
    right: np.ndarray


def best_shortcut(
    shown: tuple[np.ndarray, np.ndarray], asked: tuple[np.ndarray, np.ndarray], ways: tuple[str, ...] = WAYS
) -> Shortcut | None:
    """The way of copying with most right answers; None without a way.

    shown, asked: tokens and targets, int64 [N, T] each. In each case the spot is copied from that was right most often
    in `shown`, the first of several; scored on `asked`.
    """
    values = np.unique(shown[1][shown[1] != IGNORE])
    found = [Shortcut(way, _copied(shown, asked, values, way)) for way in ways]
    return max(found, key=lambda one: one.accuracy, default=None)


def _copied(shown: tuple, asked: tuple, values: np.ndarray, way: str) -> float:
    length = shown[0].shape[1]
    hits = np.zeros((length, length))
    for case, spot, right in _questions(*shown, values, way):
        which = (case[:, None] * length + spot)[right & (spot >= 0)]
        hits += np.bincount(which, minlength=hits.size).reshape(hits.shape)
    best = hits.argmax(1)
    found = [
        (right & (spot == best[case][:, None])).any(1)
        for case, spot, right in _questions(*asked, values, way)
    ]
    return float(np.concatenate(found).mean())


def _questions(tokens: np.ndarray, targets: np.ndarray, values: np.ndarray, way: str) -> Iterator[_Asked]:
    asked = targets != IGNORE
    nth, is_value = asked.cumsum(1) - 1, np.isin(tokens, values)
    order = np.where(is_value, is_value.cumsum(1) - 1, -1)
    for t in np.flatnonzero(asked.any(0)):
        rows = np.flatnonzero(asked[:, t])
        seen = np.arange(t + 1)
        case, spot = {
            PLACE: (np.full(len(rows), t), np.tile(seen, (len(rows), 1))),
            DISTANCE: (np.zeros(len(rows), dtype=np.int64), np.tile(t - seen, (len(rows), 1))),
            ORDER: (nth[rows, t], order[rows, : t + 1]),
        }[way]
        yield _Asked(case, spot, tokens[rows, : t + 1] == targets[rows, t, None])
