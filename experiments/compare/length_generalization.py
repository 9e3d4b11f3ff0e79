"""Runs that confirm a model of a synthetic task, scored on longer test sequences than they were trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import zoo
from experiments.compare.trials import combinations
from experiments.configuration.schema import Config
from experiments.data import TASKS, DataConfig, TaskSet
from experiments.parallel.group import pick_device, pick_precision
from experiments.planning.plan import Plan
from experiments.runs import write_splits
from experiments.scoring.evaluate import with_options
from experiments.scoring.tasks import score_sequences
from zoo.errors import UserError

LONGER = "compare.longer"
FILE = "lengths.csv"
COLUMNS = ("split", "length", "answers", "right", "nats")
SPLIT = "test"


def longer_tasks(config: Config) -> list[DataConfig]:
    """The task of a configuration with every value of compare.longer; none where it names none.

    Raises UserError for text, for an option that the task has not, and for values that change its vocabulary.
    """
    if config.compare.longer is None:
        return []
    if config.data.name not in TASKS:
        raise UserError(
            f"compare.longer works for synthetic tasks only, and data={config.data.name} is text; leave it out"
        )
    try:
        tasks = [
            with_options(config.data, dict(options))
            for options in combinations([config.compare.longer], LONGER)
        ]
    except TypeError as error:
        raise UserError(
            f"compare.longer={config.compare.longer!r} names no option of {config.data.name}; write length=32,64"
        ) from error
    if {TaskSet(one).vocab_size for one in tasks} != {TaskSet(config.data).vocab_size}:
        raise UserError(
            f"compare.longer={config.compare.longer!r} changes the vocabulary that the models were trained "
            "with; choose another option"
        )
    return tasks


def score_longer(plans: Sequence[Plan]) -> None:
    """Write lengths.csv into the folder of every run that has none yet: its test score at every length.

    Columns: split; length, tokens of a sequence; answers; right, how many were; nats, the sum of −ln p of the right
    answers.
    """
    for planned in plans:
        path = planned.folder.path / FILE
        if not path.is_file():
            write_splits(path, COLUMNS, {SPLIT: list(_rows(planned))})


def _rows(planned: Plan) -> Iterator[tuple[Any, ...]]:
    device = pick_device(planned.config.device)
    model = zoo.load(str(planned.folder.path), device, backend=planned.config.model.backend)
    for asked in longer_tasks(planned.config):
        task_set = TaskSet(asked)
        score = score_sequences(
            model,
            task_set.held_out(SPLIT).first(planned.config.evaluate.windows),
            chance=task_set.task.chance,
            batch_size=planned.config.evaluate.batch_size,
            precision=pick_precision(planned.config.trainer.precision, device),
        )
        yield task_set.task.seq_len, len(score.nats), int(score.right.sum()), float(score.nats.sum())
