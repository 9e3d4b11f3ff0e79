"""What a synthetic task is, the table of all tasks, the random numbers they draw, and shortcuts that solve them.

A task registers itself where it is defined, one file each in experiments/data/tasks/:

    @register_task("parity", config=ParityConfig, title="Parity", source="...")
    class Parity(Task): ...

`data=NAME`, its options data.tasks.NAME, the listing and the checks of the tests read this table and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any, ClassVar, NamedTuple

import numpy as np

from experiments.data.batches import extend_hash, state_after
from zoo.options import why_unusable
from zoo.registry import Clash, import_all, newest_first

# Random numbers of one sequence.

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
        places = np.argpartition(numbers, count)[:count]
        return places[np.argsort(numbers[places], kind="stable")]
    return np.argsort(numbers, kind="stable")[:count]


# Tasks.

PACKAGE = "experiments.data.tasks"
IGNORE = -100
"""The target where nothing is asked, which torch's cross-entropy leaves out."""

TASKS: dict[str, type[Task]] = {}


class Drawn(NamedTuple):
    """A sequence of a task, each field int64 [T].

    tokens: what the model reads. targets: at place t the answer to give after tokens 0 … t, IGNORE where none is asked.
    difficulty: of every answer (Task.hardness says of what), 0 elsewhere.
    """

    tokens: np.ndarray
    targets: np.ndarray
    difficulty: np.ndarray


def ask(tokens: np.ndarray, places: np.ndarray, answers: np.ndarray, difficulty: Any) -> Drawn:
    """A sequence in which these answers are asked for at these places."""
    targets, hard = np.full(len(tokens), IGNORE, dtype=np.int64), np.zeros(len(tokens), dtype=np.int64)
    targets[places], hard[places] = answers, difficulty
    return Drawn(np.asarray(tokens, dtype=np.int64), targets, hard)


class Task(ABC):
    """A rule that makes sequences with questions in them, whose answers alone are learned and scored.

    Set by __init__, which raises UserError for options that cannot work: vocab_size, tokens that there are; seq_len,
    tokens of every sequence; chance, the share of right answers of one who knows the places and the token at hand, but
    nothing before it.

    Set by the class: rule, a line that names the generator's version: changing it makes new runs of old ones, so it
    changes when the sequences do. hardness: what the difficulty of an answer counts, and its unit. copies_by: the ways
    of copying (`experiments.data.tasks_base.WAYS`) that are the rule itself and no way round it.
    """

    rule: ClassVar[str]
    hardness: ClassVar[str]
    copies_by: ClassVar[tuple[str, ...]] = ()
    name: ClassVar[str]
    config: ClassVar[type]
    title: ClassVar[str]
    source: ClassVar[str]

    vocab_size: int
    seq_len: int
    chance: float

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def draw(self, draws: Draws) -> Drawn:
        """A sequence, a function of `draws` alone, with at least one answer."""

    def word(self, token: int) -> str:
        """The token as an example shows it."""
        return str(token)

    def as_answers(self, tokens: np.ndarray) -> np.ndarray:
        """The answer that each token shows, where tokens have another name for it than answers have."""
        return tokens


def register_task(name: str, *, config: type, title: str, source: str) -> Callable[[type[Task]], type[Task]]:
    """Class decorator: make a task available as ``data=<name>``, its options as ``data.tasks.<name>``.

    config: a dataclass of options whose every field has a default; source: the paper. Raises ValueError for another
    kind of options, a class without `draw`, and a name that another file has taken.
    """

    def register(cls: type[Task]) -> type[Task]:
        if wrong := why_unusable(name, config):
            raise ValueError(f"{cls.__module__}: task '{name}': {wrong}")
        if missing := getattr(cls, "__abstractmethods__", ()):
            raise ValueError(f"{cls.__module__}: task '{name}' does not define {', '.join(sorted(missing))}")
        _refuse_clash(name, cls)
        cls.name, cls.config, cls.title, cls.source = name, config, title, source
        TASKS[name] = cls
        return cls

    return register


def _refuse_clash(name: str, cls: type[Task]) -> None:
    """Two files may not claim one name; importing the same file twice is no clash."""
    other = TASKS.get(name)
    if other is not None and other.__module__ != cls.__module__:
        newer, older = newest_first(cls, other)
        raise Clash(
            f"{newer.__module__}: task '{name}' is taken by {older.__module__}; choose another", newer
        )


def discover() -> None:
    """Import every file of experiments/data/tasks, so that the tasks in it register themselves."""
    import_all(PACKAGE, _forget)


def _forget(module: str) -> None:
    for name in [name for name, cls in TASKS.items() if cls.__module__ == module]:
        del TASKS[name]


PLACE, DISTANCE, ORDER = WAYS = "place", "distance", "order"
"""Where to copy from: a place for each place asked at; so many tokens back; the m-th value for each n-th question."""


# Shortcuts: the share of answers that is right by copying from a fixed spot, no key read.


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
    shortcuts = [Shortcut(way, _copied(shown, asked, values, way)) for way in ways]
    return max(shortcuts, key=lambda one: one.accuracy, default=None)


def _copied(shown: tuple, asked: tuple, values: np.ndarray, way: str) -> float:
    length = shown[0].shape[1]
    hits = np.zeros((length, length))
    for case, spot, right in _questions(*shown, values, way):
        which = (case[:, None] * length + spot)[right & (spot >= 0)]
        hits += np.bincount(which, minlength=hits.size).reshape(hits.shape)
    best = hits.argmax(1)
    answers = [
        (right & (spot == best[case][:, None])).any(1)
        for case, spot, right in _questions(*asked, values, way)
    ]
    return float(np.concatenate(answers).mean())


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
