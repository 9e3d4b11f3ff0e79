"""A synthetic task as a data set: its training batches, its held-out sequences, and what a summary says of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Set
from typing import Any

import numpy as np
import torch

from experiments.data.batches import NOISE, counter_hash, prefix_hashes
from experiments.data.cache import cache_root, content_hash, load_fact, store_fact
from experiments.data.config import NO_TOKENIZER, DataConfig, make_task
from experiments.data.tasks_base import IGNORE, TASKS, WAYS, Drawn, Draws, Shortcut, Task, best_shortcut
from zoo.errors import UserError
from zoo.options import deciding

# Training batches, a pure function of the seed and the number of the batch.

TRAIN = 4
"""The purpose, a first word of `counter_hash`, of training sequences."""


class TaskBatches:
    """An endless stream of sequences, cut into micro-batches.

    Micro-batch i holds sequences i·B … i·B+B−1, so that a change of batch size against accumulation leaves the order
    as it is. draw: (seed, number of the sequence) -> sequence.
    """

    def __init__(self, draw: Callable[[int, int], Drawn], batch_size: int, seed: int) -> None:
        self.draw, self.batch_size, self.seed = draw, batch_size, seed

    def batch(self, i: int) -> dict[str, torch.Tensor]:
        """Micro-batch ``i`` on the CPU.

        tokens, targets: int64 `[B, T]`, targets −100 where nothing is asked. noise_keys: int64 `[B]` in [0, 2^62).
        """
        samples = range(i * self.batch_size, (i + 1) * self.batch_size)
        drawn = [self.draw(self.seed, s) for s in samples]
        noise = counter_hash(NOISE, self.seed, np.array(samples, dtype=np.int64), 0)
        return {
            "tokens": torch.from_numpy(np.stack([one.tokens for one in drawn])),
            "targets": torch.from_numpy(np.stack([one.targets for one in drawn])),
            "noise_keys": torch.from_numpy(noise),
        }


# Memory of training: the share of a task that is right by the answers seen after the same beginnings of sequences.


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


# The data set.

HELD_OUT = 1024
"""Sequences of each held-out split: the standard error of the share that are right throughout is at most 1.6 %."""

# One constant a purpose, beside that of training (TRAIN): the splits are different streams.
_HELD_OUT = {"validation": 5, "test": 6}
_ATTEMPTS = 1000
_COUNTED = 32
_LOOKED_AT = 1 << 25
_REMEMBERED = 1 << 22
_VERSION = 1
_drawn: dict[str, dict[str, Sequences]] = {}
_shortcuts: dict[str, Shortcut | None] = {}


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Held-out sequences, each field int64 [N, T] as in `tasks_base.Drawn`."""

    tokens: np.ndarray
    targets: np.ndarray
    difficulty: np.ndarray

    def first(self, count: int | None) -> Sequences:
        """The first so many (None: all)."""
        return Sequences(self.tokens[:count], self.targets[:count], self.difficulty[:count])

    @property
    def answers(self) -> int:
        """The number of answers asked for."""
        return int((self.targets != IGNORE).sum())


class TaskSet:
    """A task with its options.

    Held-out sequences are the same for every run, whatever its seed: sequence s of a split is drawn from hash(split,
    s, attempt). Sequence s of training is drawn from hash(training, seed, s, attempt). A training sequence whose tokens
    are those of a held-out one is drawn again, with the next attempt, and so is a test sequence that is in the
    validation split or was in its own: by construction none of them ever meets another, in small spaces too. Prefixes
    do: of parities of few bits, say, training has seen all.
    """

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self.task = make_task(config)

    @property
    def vocab_size(self) -> int:
        """Tokens that the model must know."""
        return self.task.vocab_size

    @property
    def card(self) -> dict[str, Any]:
        """Return what a model's card says of the task that it was trained on."""
        return {"task": {"name": self.task.name, "options": dataclasses.asdict(self.task.options)}}

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash (32 hexadecimal digits) of what decides the sequences: the task, its options and how they are drawn."""
        return content_hash([_VERSION, HELD_OUT, self.task.name, self.task.rule, deciding(self.task.options)])

    @property
    def answers_vary(self) -> bool:
        """Return whether sequences differ in their number of answers: whether the first of the validation split do."""
        drawn = (self.task.draw(Draws(_HELD_OUT["validation"], place, 0)) for place in range(_COUNTED))
        return len({int((one.targets != IGNORE).sum()) for one in drawn}) > 1

    def batches(self, seed: int) -> TaskBatches:
        """The training batches of a seed. Raises UserError where the task has too few different sequences."""
        taken = self.taken
        return TaskBatches(lambda *words: self.draw((TRAIN, *words), taken), self.config.batch_size, seed)

    def held_out(self, split: str) -> Sequences:
        """The sequences of "validation" or "test". Raises UserError where the task has too few different ones."""
        return self._held_out[split]

    def draw(self, words: Iterable[int], taken: Set[bytes]) -> Drawn:
        """The sequence of these words, of the first attempt whose tokens are not among those taken.

        Raises UserError where the task has hardly more sequences than these.
        """
        for attempt in range(_ATTEMPTS):
            drawn = self.task.draw(Draws(*words, attempt))
            if drawn.tokens.tobytes() not in taken:
                return drawn
        raise UserError(
            f"data={self.task.name} has only about {len(taken):,} different sequences with these options, and "
            f"{2 * HELD_OUT:,} are held out from training; make sequences longer (data.tasks.{self.task.name})"
        )

    @property
    def _held_out(self) -> dict[str, Sequences]:
        """Drawn once a process."""
        if self.fingerprint not in _drawn:
            _drawn[self.fingerprint] = self._draw_held_out()
        return _drawn[self.fingerprint]

    def _draw_held_out(self) -> dict[str, Sequences]:
        taken: set[bytes] = set()
        drawn = {}
        for split, purpose in _HELD_OUT.items():
            rows = []
            for place in range(HELD_OUT):
                rows.append(self.draw((purpose, place), taken))
                taken.add(rows[-1].tokens.tobytes())
            drawn[split] = Sequences(*(np.stack(field) for field in zip(*rows, strict=True)))
        return drawn

    @functools.cached_property
    def taken(self) -> frozenset[bytes]:
        """The tokens of all held-out sequences."""
        return frozenset(row.tobytes() for part in self._held_out.values() for row in part.tokens)

    @property
    def shortcut(self) -> Shortcut | None:
        """The best way of copying that is not the task's rule.

        Spots are learned from the validation split and scored on the test split, on as many first sequences as have
        2^25 pairs of question and token. Measured once a process.
        """
        if self.fingerprint not in _shortcuts:
            shown, asked = self._held_out.values()
            count = max(1, _LOOKED_AT * HELD_OUT // (shown.answers * self.task.seq_len))
            parts = [
                (self.task.as_answers(part.tokens[:count]), part.targets[:count]) for part in (shown, asked)
            ]
            ways = tuple(way for way in WAYS if way not in self.task.copies_by)
            _shortcuts[self.fingerprint] = best_shortcut(*parts, ways)
        return _shortcuts[self.fingerprint]

    def memorised(self, sequences: int) -> float:
        """The share of right answers of the test split by a memory of so many training sequences, those of seed 0.

        Sequences of other seeds give the same but for what a sample deviates by. At most as many are taken as have 2^22
        answers. Measured once a machine: kept in the cache folder.
        """
        test = self.held_out("test")
        count = max(1, min(sequences, _REMEMBERED * HELD_OUT // test.answers))
        file = (
            cache_root(self.config) / "memories" / f"{content_hash([_VERSION, self.fingerprint, count])}.json"
        )
        fact = load_fact(file, float)
        if fact is None:
            taken = self.taken
            drawn = [self.draw((TRAIN, 0, place), taken) for place in range(count)]
            shown = np.stack([one.tokens for one in drawn]), np.stack([one.targets for one in drawn])
            fact = memory_accuracy(shown, (test.tokens, test.targets))
            store_fact(file, fact)
        return fact

    @property
    def label(self) -> str:
        """The task and its options as a table shows them: `mqar (length 32, pairs 4)`."""
        options = dataclasses.asdict(self.task.options).items()
        return f"{self.task.name} ({', '.join(f'{key} {value}' for key, value in options)})"

    def describe(self) -> dict[str, Any]:
        """The node `data` of a run's summary."""
        return {
            "name": self.task.name,
            **dict.fromkeys(("train", *_HELD_OUT), self.label),
            "task": dataclasses.asdict(self.task.options),
            "tokenizer": NO_TOKENIZER,
            "vocab_size": self.vocab_size,
            "seq_len": self.task.seq_len,
            "fingerprint": self.fingerprint,
            "chance": self.task.chance,
            "shortcut": self.shortcut and self.shortcut._asdict(),
            "hardness": self.task.hardness,
            "splits": {
                name: {"sequences": len(part.tokens), "answers": part.answers}
                for name, part in self._held_out.items()
            },
        }


def task_label(config: DataConfig) -> str:
    """The task and its options (`TaskSet.label`); empty for text."""
    return TaskSet(config).label if config.name in TASKS else ""


def example(task: Task) -> list[tuple[str, str]]:
    """Token and answer (`.` where none is asked) of every place of the first validation sequence, as words."""
    drawn = task.draw(Draws(_HELD_OUT["validation"], 0, 0))
    places = zip(drawn.tokens.tolist(), drawn.targets.tolist(), strict=True)
    return [(task.word(token), "." if target == IGNORE else task.word(target)) for token, target in places]
