"""What a memory of training gets right: against the slow control, by hand, and of tasks."""

import dataclasses

import numpy as np
import pytest
from support.task_controls import remembering

from experiments.data import task_set as task_sets
from experiments.data.config import DataConfig
from experiments.data.task_set import TRAIN, TaskSet, memory_accuracy
from experiments.data.tasks_base import IGNORE


def task_set(name: str, cache=None, **options) -> TaskSet:
    made = DataConfig(name=name, cache_dir=cache)
    setattr(made.tasks, name, dataclasses.replace(getattr(made.tasks, name), **options))
    return TaskSet(made)


def training(found: TaskSet, count: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = [found.draw((TRAIN, 0, place), found.taken) for place in range(count)]
    return np.stack([one.tokens for one in drawn]), np.stack([one.targets for one in drawn])


@pytest.mark.parametrize(("name", "options"), [("parity", {"length": 12}), ("permutations", {"length": 5})])
def test_what_was_shown_is_known_and_of_the_rest_no_more_than_chance(name: str, options: dict):
    """The slow control counts what was not shown as wrong."""
    found = task_set(name, **options)
    shown, test = training(found, 600), found.held_out("test")
    known = float(np.nanmean(remembering(shown, (test.tokens, test.targets))))
    guessed = (1 - known) * found.task.chance
    assert 0.1 < known < memory_accuracy(shown, (test.tokens, test.targets)) < known + 1.5 * guessed


def test_unknown_beginnings_get_the_most_frequent_answer_after_that_token_there():
    tokens = np.array([[1, 7, 5], [2, 7, 5], [3, 7, 5], [4, 8, 5], [9, 7, 5]])
    targets = np.array([[IGNORE, 1, 2], [IGNORE, 1, 2], [IGNORE, 3, 2], [IGNORE, 4, 2], [IGNORE, 3, 2]])
    shown = tokens[:4], targets[:4]
    assert memory_accuracy(shown, (tokens[:4], targets[:4])) == 1.0
    assert memory_accuracy(shown, (tokens[4:], targets[4:])) == 0.5  # 2 is right, 1 is not
    elsewhere = np.array([[7, 6, 5]]), np.array([[1, IGNORE, 2]])
    assert memory_accuracy(shown, elsewhere) == 0.5  # 7 was never asked about at the first place


def test_of_several_answers_after_one_beginning_the_most_frequent_is_given():
    tokens = np.ones((5, 2), dtype=np.int64)
    targets = np.full((5, 2), IGNORE)
    targets[:, 1] = 4, 3, 3, 4, 3
    assert memory_accuracy((tokens, targets), (tokens[:1], targets[1:2])) == 1.0


def test_it_is_measured_once_and_kept(tmp_path, monkeypatch):
    found = task_set("permutations", cache=str(tmp_path), length=5)
    test = found.held_out("test")
    expected = memory_accuracy(training(found, 300), (test.tokens, test.targets))
    assert found.memorised(300) == expected
    monkeypatch.setattr(task_sets, "memory_accuracy", lambda *_: 0.125)
    assert found.memorised(300) == expected
    assert found.memorised(301) == 0.125  # another number of sequences
    assert task_set("permutations", cache=str(tmp_path), length=6).memorised(300) == 0.125  # other options
    (file,) = (path for path in (tmp_path / "memories").iterdir() if path.read_text() == str(expected))
    file.write_text("damaged")
    assert found.memorised(300) == 0.125


def test_long_runs_are_measured_on_their_first_sequences(tmp_path, monkeypatch):
    """Four answers a sequence: 64 answers are 16 sequences."""
    found = task_set("mqar", cache=str(tmp_path))
    counts = []
    monkeypatch.setattr(task_sets, "_REMEMBERED", 64)
    monkeypatch.setattr(task_sets, "memory_accuracy", lambda shown, _: counts.append(len(shown[0])) or 0.5)
    found.memorised(10_000)
    found.memorised(9)
    assert counts == [16, 9]
