"""What copying from a fixed spot gets right: against the slow control, where the answer is a copy, and of tasks."""

import dataclasses

import numpy as np
import pytest
from support.task_controls import copying

from experiments.data.config import DataConfig
from experiments.data.task_set import HELD_OUT, TaskSet
from experiments.data.tasks_base import DISTANCE, IGNORE, ORDER, PLACE, WAYS, best_shortcut


def task_set(name: str, **options) -> TaskSet:
    made = DataConfig(name=name)
    setattr(made.tasks, name, dataclasses.replace(getattr(made.tasks, name), **options))
    return TaskSet(made)


@pytest.mark.parametrize(
    "name", ["mqar", "stack", "needle", "fuzzy_recall", "flip_flop", "palindrome", "parity"]
)
def test_each_way_of_copying_gets_what_the_slow_control_gets(name: str):
    found = task_set(name)
    shown, asked = (
        (part.tokens[:120], part.targets[:120]) for part in map(found.held_out, ("validation", "test"))
    )
    slow = copying(shown, asked)
    for way in WAYS:
        assert best_shortcut(shown, asked, (way,)) == (way, slow[way][0])


def test_the_best_way_is_taken():
    """Answers stand two tokens back, once in three sequences at place 0."""
    tokens = np.random.default_rng(0).integers(1, 50, (90, 8))
    targets = np.full(tokens.shape, IGNORE)
    targets[:, 4:6] = tokens[:, 2:4]
    targets[::3, 6] = tokens[::3, 0]
    parts = (tokens[:45], targets[:45]), (tokens[45:], targets[45:])
    assert best_shortcut(*parts) == (PLACE, 1.0)
    assert best_shortcut(*parts, (DISTANCE,)).accuracy == pytest.approx(6 / 7, abs=0.02)
    assert best_shortcut(*parts, ()) is None


@pytest.mark.parametrize(
    ("name", "options", "way", "share"),
    [
        ("mqar", {"length": 16}, None, 0.38),
        ("needle", {"context": 28, "needles": 2}, ORDER, 0.5),
        ("palindrome", {}, DISTANCE, 0.14),
        ("selective_copy", {}, PLACE, 0.09),
        (
            "entity_tracking",
            {"swaps": 8},
            PLACE,
            0.26,
        ),  # `1:a2` shows the answer a2, often of the same box still
    ],
)
def test_what_a_task_says_of_itself(name: str, options: dict, way: str | None, share: float):
    """Its own rule is no way round it. Shares: five standard errors of answers that hang together throughout."""
    found = task_set(name, **options)
    assert found.shortcut.way in (WAYS if way is None else (way,))
    assert found.shortcut.accuracy == pytest.approx(share, abs=5 * (share * (1 - share) / HELD_OUT) ** 0.5)
    assert found.describe()["shortcut"] == {"way": found.shortcut.way, "accuracy": found.shortcut.accuracy}


@pytest.mark.long
def test_long_sequences_are_measured_on_fewer():
    """A question at each of 1,024 places: 2^20 pairs a sequence, so 32 sequences."""
    long = task_set("parity", length=1024)
    shown, asked = (
        (part.tokens[:32], part.targets[:32]) for part in map(long.held_out, ("validation", "test"))
    )
    assert long.shortcut == best_shortcut(shown, asked)
