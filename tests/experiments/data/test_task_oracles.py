"""Every task's answers against a slow reading of its rule from the tokens alone."""

import itertools
import math
from collections import Counter
from statistics import NormalDist

import numpy as np
import pytest
from support.task_readers import READERS, permutations

from experiments.data import TASKS
from experiments.data.tasks_base import IGNORE, Draws

MANY = pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.long)])
OTHERS = {
    "mqar": {"fill": "values", "length": 64, "pairs": 16, "vocab": 40},
    "permutations": {"group": "A5"},
    "stack": {"stacks": 1, "operations": 3},
    "noisy_recall": {"length": 18, "share": 0.9},
    "fuzzy_recall": {"entries": 8, "length": 54, "longest": 3},
    "needle": {"needles": 4, "context": 8},
    "entity_tracking": {"boxes": 2, "items": 3, "swaps": 5},
    "induction": {"length": 7, "shortest": 2, "longest": 6, "vocab": 6},
}


def drawn(name: str, count: int, **options):
    task = TASKS[name](TASKS[name].config(**options))
    for place in range(count):
        one = task.draw(Draws(11, place))
        places = np.flatnonzero(one.targets != IGNORE).tolist()
        asked = {i: (task.word(int(one.targets[i])), int(one.difficulty[i])) for i in places}
        yield [task.word(int(token)) for token in one.tokens], asked


def test_swaps_move_two_points_or_none_and_their_chance_is_counted():
    options = {"group": "S5", "swaps": True, "length": 6}
    seen, likeliest = set(), []
    for words, asked in drawn("permutations", 300, **options):
        assert asked == permutations(words), words
        seen |= set(words)
    assert len(seen) == 11
    assert all(sum(digit != str(n) for n, digit in enumerate(word, 1)) in (0, 2) for word in seen)
    before = Counter({(1, 2, 3, 4, 5): 1.0})
    for _ in range(5):  # the product before the element at hand, by counting all ways
        after = Counter()
        for product, share in before.items():
            for word in seen:
                after[tuple(int(word[point - 1]) for point in product)] += share / 11
        before = after
        likeliest.append(max(before.values()))
    task = TASKS["permutations"](TASKS["permutations"].config(**options))
    assert task.chance == pytest.approx(sum(likeliest) / 5)


def test_every_task_has_an_oracle():
    assert set(READERS) | {"regression", "memorisation"} == set(TASKS)


@MANY
@pytest.mark.parametrize("name", READERS)
def test_answers_are_those_of_the_rule(name: str, count: int):
    for words, asked in drawn(name, count):
        assert asked == READERS[name](words), words


@pytest.mark.parametrize("name", OTHERS)
def test_answers_are_those_of_the_rule_with_other_options(name: str):
    for words, asked in drawn(name, 100, **OTHERS[name]):
        assert asked == READERS[name](words), words


@MANY
def test_memorised_facts_are_the_same_in_every_sequence(count: int):
    facts: dict[str, str] = {}
    for words, asked in drawn("memorisation", count):
        assert sorted(asked) == [i for i, word in enumerate(words) if word == "?"]
        for place, (value, _) in asked.items():
            assert facts.setdefault(words[place - 1], value) == value
    assert len(set(facts.values())) > len(facts) // 2
    others = [asked for _, asked in drawn("memorisation", 1, facts_seed=1)]
    assert others != [asked for _, asked in drawn("memorisation", 1)]


@MANY
def test_regression_is_linear_in_the_signs(count: int):
    """By arithmetic on the function that the same random numbers give; and no input tells of another by its sign."""
    task, normal = TASKS["regression"](TASKS["regression"].config()), NormalDist()
    for place, (words, asked) in enumerate(drawn("regression", count)):
        w = Draws(11, place).normal(6).tolist()
        xs, bins = words[::2], words[1::2]
        for n, (x, said) in enumerate(zip(xs, bins, strict=True)):
            y = sum(a if sign == "+" else -a for a, sign in zip(w, x, strict=True)) / math.sqrt(6)
            assert said == f"b{int(normal.cdf(y) * 8)}"
            assert asked[2 * n] == (said, n)
        assert len(asked) == len(set(xs)) == 24
        assert not {x.translate(str.maketrans("+-", "-+")) for x in xs} & set(xs)
    assert task.chance == pytest.approx(1 / 8)


@MANY
def test_regression_on_signs_can_be_solved_where_it_asks(count: int):
    """By trying all weights: those that agree with the examples before agree on the last three of eight outputs."""
    options = {"points": 8, "dimensions": 4, "bins": 8, "weights": "signs", "unasked": 5}
    task, told, right = TASKS["regression"](TASKS["regression"].config(**options)), 0, []
    edges = [NormalDist().inv_cdf(i / 8) for i in range(1, 8)]
    for words, asked in drawn("regression", count, **options):
        xs = [[1 if sign == "+" else -1 for sign in word] for word in words[::2]]
        possible = list(itertools.product((-1, 1), repeat=4))
        for n, (x, said) in enumerate(zip(xs, words[1::2], strict=True)):
            bins = {
                w: f"b{sum(sum(map(math.prod, zip(w, x, strict=True))) / 2 >= e for e in edges)}"
                for w in possible
            }
            if n >= 5:
                assert asked[2 * n] == (said, n)
                told += len(set(bins.values())) == 1
            possible = [w for w in possible if bins[w] == said]
            assert possible
        assert sorted(asked) == [10, 12, 14]
        right += words[1::2]
    assert told > 0.99 * 3 * count
    assert task.chance == 6 / 16
    assert right.count("b4") / len(right) == pytest.approx(
        task.chance, abs=4 * (0.25 / len(right)) ** 0.5 + 0.01
    )


@MANY
def test_regression_on_bits_can_be_solved_where_it_asks(count: int):
    """The same with inputs of bits, none of them zero or twice; sixteen bins tell all outputs of four weights apart."""
    options = {"points": 10, "dimensions": 4, "bins": 16, "weights": "signs", "unasked": 6, "inputs": "bits"}
    task, told, guessed = TASKS["regression"](TASKS["regression"].config(**options)), 0, {}
    edges = [NormalDist().inv_cdf(i / 16) for i in range(1, 16)]
    for words, asked in drawn("regression", count, **options):
        possible = list(itertools.product((-1, 1), repeat=4))
        assert len(set(words[::2])) == 10
        for n, (x, said) in enumerate(zip(words[::2], words[1::2], strict=True)):
            sums = {w: sum(one for one, bit in zip(w, x, strict=True) if bit == "1") for w in possible}
            bins = {w: f"b{sum(total / 2 >= e for e in edges)}" for w, total in sums.items()}
            if n >= 6:
                assert asked[2 * n] == (said, n)
                told += len(set(bins.values())) == 1
            possible = [w for w in possible if bins[w] == said]
            assert possible
            assert {sums[w] for w in possible} == {sums[possible[0]]}, "a bin of each output"
            guessed.setdefault(x, []).append(said)
        assert sorted(asked) == [12, 14, 16, 18]
    assert told > 0.99 * 4 * count
    assert set(guessed) == {f"{number:04b}" for number in range(1, 16)}
    best = sum(max(map(found.count, set(found))) for found in guessed.values()) / (10 * count)
    assert best == pytest.approx(task.chance, abs=_error(best_of=15, draws=10 * count / 15))


@MANY
def test_outputs_of_normal_weights_on_bits_are_as_often_guessed_as_chance_says(count: int):
    options = {"points": 7, "dimensions": 3, "bins": 4, "inputs": "bits"}
    found: dict[str, list[str]] = {}
    for words, _ in drawn("regression", count, **options):
        for x, said in zip(words[::2], words[1::2], strict=True):
            found.setdefault(x, []).append(said)
    best = sum(max(map(said.count, set(said))) for said in found.values()) / (7 * count)
    chance = TASKS["regression"](TASKS["regression"].config(**options)).chance
    assert 0.25 < chance < 0.4
    assert best == pytest.approx(chance, abs=_error(best_of=7, draws=count))


def _error(best_of: int, draws: float) -> float:
    """Of the mean over so many inputs of the most frequent output's share among the draws of each: the most that
    choosing the larger of two equal shares adds, 1/(2√n), and four standard errors.
    """
    return (0.5 + 4 * 0.5 / best_of**0.5) / draws**0.5
