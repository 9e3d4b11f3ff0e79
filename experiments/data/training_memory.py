"""Memory of training: the share of a task that is right by the answers seen after the same beginnings of sequences."""

from __future__ import annotations

import numpy as np

from experiments.data.batches import prefix_hashes
from experiments.data.task_registry import IGNORE


def memory_accuracy(shown: tuple[np.ndarray, np.ndarray], asked: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the share of right answers of a look-up in the sequences shown, without the task's rule.

    shown, asked: tokens and targets, int64 [N, T] each. After tokens 0 … t that were shown, the answer that came there
    most often; after others the most frequent one at place t after token t, and the smallest of equally frequent ones.
    """
    (beginnings, spots), answers = _cases(*shown)
    (asked_beginnings, asked_spots), right = _cases(*asked)
    by_spot = _look_up(_likeliest(spots, answers), asked_spots)
    by_heart = _look_up(_likeliest(beginnings, answers), asked_beginnings)
    return float((np.where(by_heart == IGNORE, by_spot, by_heart) == right).mean())


def _cases(tokens: np.ndarray, targets: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return every answer's beginning (a hash), its spot (place and token there, one number), and itself: [n] each."""
    which = targets != IGNORE
    places = np.arange(tokens.shape[1]) << 32
    return (prefix_hashes(tokens)[which], (places + tokens)[which]), targets[which]


def _likeliest(cases: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every case once, ascending, and its most frequent answer."""
    order = np.lexsort((answers, cases))
    cases, answers = cases[order], answers[order]
    first = np.flatnonzero(np.r_[True, (cases[1:] != cases[:-1]) | (answers[1:] != answers[:-1])])
    counts = np.diff(np.r_[first, len(cases)])
    cases, answers = cases[first], answers[first]
    order = np.lexsort((-counts, cases))
    known, at = np.unique(cases[order], return_index=True)
    return known, answers[order][at]


def _look_up(table: tuple[np.ndarray, np.ndarray], cases: np.ndarray) -> np.ndarray:
    """The answers to cases; IGNORE where one is not in the table."""
    known, answers = table
    at = np.searchsorted(known, cases).clip(max=len(known) - 1)
    return np.where(known[at] == cases, answers[at], IGNORE)
