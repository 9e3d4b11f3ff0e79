"""What copying and a memory of training get right; our tasks against what the papers' own generators make."""

import dataclasses
import hashlib

import numpy as np
import pytest
from support.task_controls import copying, remembering
from support.task_readers import READERS

from experiments.data import TASKS
from experiments.data import task_set as task_sets
from experiments.data.config import DataConfig
from experiments.data.task_set import HELD_OUT, TRAIN, TaskSet, memory_accuracy
from experiments.data.tasks_base import DISTANCE, IGNORE, ORDER, PLACE, WAYS, Draws, Task, best_shortcut


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


ZOOLOGY = {
    (64, 500, 16, 4, 123): "4f83651f37d80c7850558f59c18777769f0dea8e046ddeef1dd07962910e19e3",
    (8192, 200, 64, 4, 123): "99f79f3db83aca0a37d2956b28846a08a5951cd69f6172f2bf92d8978618d649",
    (8192, 50, 256, 16, 0): "0f210d093e2e48f3b5e8e020dce7ae073af668ca25e9df7066a96a23931f9a79",
}
"""(vocab, sequences, length, pairs, seed) -> SHA-256 of inputs and labels, int64, little-endian, as `multiquery_ar` of
HazyResearch/zoology (commit dbcb60d, random_non_queries=False) makes them of that seed; labels are −100 elsewhere."""


def zoology(vocab: int, count: int, length: int, pairs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels [count, length] of that generator: its draws, in its order, from NumPy's legacy stream."""
    stream = np.random.RandomState(seed)

    def rows(choices: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.stack([stream.choice(choices, pairs, replace=False, p=weights) for _ in range(count)])

    keys, values = rows(np.arange(1, vocab // 2)), rows(np.arange(vocab // 2, vocab))
    slots = np.arange((length - 2 * pairs) // 2)
    weights = 0.01 * (slots + 1) ** (0.01 - 1)
    places = 2 * pairs + 2 * rows(slots, weights / weights.sum())
    inputs, labels = np.zeros((count, length), np.int64), np.full((count, length), -100)
    inputs[:, 0 : 2 * pairs : 2], inputs[:, 1 : 2 * pairs : 2] = keys, values
    np.put_along_axis(inputs, places, keys, 1)
    np.put_along_axis(labels, places, values, 1)
    return inputs, labels


@pytest.mark.parametrize("settings", ZOOLOGY)
def test_the_rule_of_mqar_answers_the_papers_own_sequences(settings: tuple[int, ...]):
    inputs, labels = zoology(*settings)
    little = b"".join(part.astype("<i8").tobytes() for part in (inputs, labels))
    assert hashlib.sha256(little).hexdigest() == ZOOLOGY[settings], "not the published generator's data"
    vocab, _, length, pairs, _ = settings
    task = mqar(vocab, length, pairs)
    for tokens, asked in zip(inputs, labels, strict=True):
        answers = READERS["mqar"]([task.word(token) for token in tokens.tolist()])
        wanted = {int(i): task.word(int(asked[i])) for i in np.flatnonzero(asked != -100)}
        assert {place: word for place, (word, _) in answers.items()} == wanted


@pytest.mark.parametrize(("length", "pairs"), [(16, 4), (64, 4), (64, 8)])
def test_questions_of_mqar_stand_where_the_papers_do(length: int, pairs: int):
    """How often each pair is asked for in each slot, in two samples: within five standard errors of a difference."""
    count = 2000
    inputs, labels = zoology(128, count, length, pairs, 7)
    theirs = frequencies(inputs, labels != -100, pairs)
    tokens, targets = ours_drawn(128, count, length, pairs)
    ours = frequencies(tokens, targets != IGNORE, pairs)
    error = np.sqrt((ours * (1 - ours) + theirs * (1 - theirs) + 1 / count) / count)
    assert (np.abs(ours - theirs) <= 5 * error).all()
    assert ours.sum() == pytest.approx(pairs)


@pytest.mark.parametrize("length", [16, 64])
def test_copying_gets_of_mqar_what_it_gets_of_the_papers_own(length: int):
    """What a place tells is the paper's power law: no more of ours. A sequence's share deviates by at most a half."""
    count = 1000
    samples = zoology(64, 2 * count, length, 4, 5), ours_drawn(64, 2 * count, length, 4)
    theirs, ours = (
        copying((tokens[:count], targets[:count]), (tokens[count:], targets[count:]))
        for tokens, targets in samples
    )
    for rule, (right, _) in ours.items():
        assert abs(right - theirs[rule][0]) <= 5 * 0.5 * (2 / count) ** 0.5, rule


def ours_drawn(vocab: int, count: int, length: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets [count, length] of our task with those settings."""
    task = mqar(vocab, length, pairs)
    drawn = [task.draw(Draws(11, place)) for place in range(count)]
    return np.stack([one.tokens for one in drawn]), np.stack([one.targets for one in drawn])


def mqar(vocab: int, length: int, pairs: int) -> Task:
    """Our task with those settings."""
    return TASKS["mqar"](TASKS["mqar"].config(vocab=vocab, length=length, pairs=pairs))


def frequencies(tokens: np.ndarray, asked: np.ndarray, pairs: int) -> np.ndarray:
    """The share of sequences [pairs, places] in which a pair is asked for at a place."""
    keys = tokens[:, 0 : 2 * pairs : 2]
    same = (tokens[:, None, :] == keys[:, :, None]) & asked[:, None, :]
    return same.mean(0)


def remembered_set(name: str, cache=None, **options) -> TaskSet:
    made = DataConfig(name=name, cache_dir=cache)
    setattr(made.tasks, name, dataclasses.replace(getattr(made.tasks, name), **options))
    return TaskSet(made)


def training(found: TaskSet, count: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = [found.draw((TRAIN, 0, place), found.taken) for place in range(count)]
    return np.stack([one.tokens for one in drawn]), np.stack([one.targets for one in drawn])


@pytest.mark.parametrize(("name", "options"), [("parity", {"length": 12}), ("permutations", {"length": 5})])
def test_what_was_shown_is_known_and_of_the_rest_no_more_than_chance(name: str, options: dict):
    """The slow control counts what was not shown as wrong."""
    found = remembered_set(name, **options)
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
    found = remembered_set("permutations", cache=str(tmp_path), length=5)
    test = found.held_out("test")
    expected = memory_accuracy(training(found, 300), (test.tokens, test.targets))
    assert found.memorised(300) == expected
    monkeypatch.setattr(task_sets, "memory_accuracy", lambda *_: 0.125)
    assert found.memorised(300) == expected
    assert found.memorised(301) == 0.125  # another number of sequences
    assert (
        remembered_set("permutations", cache=str(tmp_path), length=6).memorised(300) == 0.125
    )  # other options
    (file,) = (path for path in (tmp_path / "memories").iterdir() if path.read_text() == str(expected))
    file.write_text("damaged")
    assert found.memorised(300) == 0.125


def test_long_runs_are_measured_on_their_first_sequences(tmp_path, monkeypatch):
    """Four answers a sequence: 64 answers are 16 sequences."""
    found = remembered_set("mqar", cache=str(tmp_path))
    counts = []
    monkeypatch.setattr(task_sets, "_REMEMBERED", 64)
    monkeypatch.setattr(task_sets, "memory_accuracy", lambda shown, _: counts.append(len(shown[0])) or 0.5)
    found.memorised(10_000)
    found.memorised(9)
    assert counts == [16, 9]
