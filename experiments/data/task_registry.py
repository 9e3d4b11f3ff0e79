"""Synthetic tasks: what a task is, and the table of all of them.

A task registers itself where it is defined, one file each in experiments/data/tasks/:

    @register_task("parity", config=ParityConfig, title="Parity", source="...")
    class Parity(Task): ...

`data=NAME`, its options data.tasks.NAME, the listing and the checks of the tests read this table and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from experiments.data.draws import Draws
from zoo.options import has_defaults
from zoo.registry import Clash, import_all, newest_first

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
    of copying (`experiments.data.shortcuts.WAYS`) that are the rule itself and no way round it.
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
    kind of options, and for a name that another file has taken.
    """

    def register(cls: type[Task]) -> type[Task]:
        if not has_defaults(config):
            raise ValueError(
                f"{cls.__module__}: the options of task '{name}' are a dataclass whose every field has a default"
            )
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
