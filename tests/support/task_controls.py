"""Controls that answer a task without its rule: by counting, copying from a place, or remembering training."""

import collections
from collections.abc import Iterator

import numpy as np

from experiments.data.tasks_base import IGNORE

Parts = tuple[np.ndarray, np.ndarray]


def counting(known: np.ndarray, asked: np.ndarray, columns: list[int]) -> float:
    """Share of answers that are the most frequent one of training in the same case."""
    counts: dict[tuple, collections.Counter] = collections.defaultdict(collections.Counter)
    for row in known.tolist():
        counts[tuple(row[i] for i in columns)][row[-1]] += 1
    guesses = {case: found.most_common(1)[0][0] for case, found in counts.items()}
    return float(np.mean([guesses.get(tuple(row[i] for i in columns)) == row[-1] for row in asked.tolist()]))


def copying(known: Parts, asked: Parts) -> dict[str, tuple[float, int]]:
    """The share of right answers, and their number, by each rule of where to copy from.

    place: one place for each place that is asked at; distance: so many tokens back, the same for all; order: the m-th
    token that can be an answer, m by how many were asked for before. Where to copy from is what trains best.
    """
    values = np.unique(known[1][known[1] != IGNORE])
    found = {}
    for rule in ("place", "distance", "order"):
        hits: dict[int, np.ndarray] = collections.defaultdict(lambda: np.zeros(known[0].shape[1]))
        for case, row, answer in copies(known, values, rule):
            hits[case][: len(row)] += row == answer
        source = {case: int(count.argmax()) for case, count in hits.items()}
        right = [
            source.get(case, 0) < len(row) and row[source.get(case, 0)] == answer
            for case, row, answer in copies(asked, values, rule)
        ]
        found[rule] = float(np.mean(right)), len(right)
    return found


def copies(parts: Parts, values: np.ndarray, rule: str) -> Iterator[tuple[int, np.ndarray, int]]:
    """Yield of every answer its case, the tokens that could be copied by the rule, and the answer."""
    for tokens, targets in zip(*parts, strict=True):
        for nth, place in enumerate(np.flatnonzero(targets != IGNORE)):
            seen = tokens[: place + 1]
            if rule == "place":
                yield int(place), seen, targets[place]
            elif rule == "distance":
                yield 0, seen[::-1], targets[place]
            else:
                yield nth, seen[np.isin(seen, values)], targets[place]


def remembering(known: Parts, asked: Parts) -> np.ndarray:
    """The share of right answers of every place [T], of one who knows the answers after all that training showed.

    NaN where nothing is asked. What was not shown counts as wrong.
    """
    table = {
        tokens[: t + 1].tobytes(): targets[t]
        for tokens, targets in zip(*known, strict=True)
        for t in range(len(tokens))
    }
    tokens, targets = asked
    right = (
        np.array([[table.get(row[: t + 1].tobytes()) for t in range(len(row))] for row in tokens]) == targets
    )
    return np.where((targets != IGNORE).any(0), right.mean(0), np.nan)
