"""Scoring a finished run of a synthetic task again: on its held-out sequences, or on those of other options."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from experiments.configuration.schema import EvaluateConfig
from experiments.data import DataConfig, TaskSet
from experiments.data.config import OF_TEXT, make_task
from experiments.data.task_registry import Task
from experiments.parallel.group import pick_precision
from experiments.runs.folders import CONFIG
from experiments.runs.load_run import load_model, recorded_data
from experiments.scoring.tasks import score_sequences
from experiments.scoring.text import count_scored
from experiments.system.progress import Sink
from zoo.errors import UserError
from zoo.io import read_card

Metrics = dict[str, Any]


def task_of(run: str | None) -> DataConfig | None:
    """The node `data` of a run of a task; None for one of text, or none. Raises UserError for a damaged one."""
    if run is None or "task" not in read_card(run):
        return None
    where = Path(run)
    return recorded_data((where if (where / CONFIG).is_file() else where.parent.parent) / CONFIG)


def with_options(own: DataConfig, options: dict[str, Any]) -> DataConfig:
    """The data of a run with other values of these options of its task."""
    changed = dataclasses.replace(getattr(own.tasks, own.name), **options)
    tasks = dataclasses.replace(own.tasks, **{own.name: changed})
    return dataclasses.replace(own, tasks=tasks, **OF_TEXT)


def task_scores(
    run: str,
    asked: DataConfig,
    options: EvaluateConfig,
    precision: str,
    device: torch.device,
    sink: Sink,
    backend: str | None = None,
) -> Iterator[tuple[str, Metrics]]:
    """Yield the name of each split, and its metrics with "text", the task and its options in words.

    asked: the run's own data, or that task with other options (`with_options`): longer, say. Held-out sequences are
    drawn for these; those of the run's own options are the ones that it was scored on. backend: in place of the run's
    own. Raises UserError for options that are of text, and for a task whose tokens mean something else to the model.
    """
    for key, value in (("carry", options.carry or None), ("stride", options.stride)):
        if value is not None:
            raise UserError(
                f"evaluate.{key}={value} is of text, and {run} was trained on a task; leave it out"
            )
    task_set = TaskSet(asked)
    _check_words(task_of(run), task_set.task)
    model = load_model(run, device, ("scoring",), precision=precision, backend=backend)
    for name in options.splits:
        sequences = task_set.held_out(name).first(options.windows)
        score = score_sequences(
            model,
            sequences,
            chance=task_set.task.chance,
            batch_size=options.batch_size,
            precision=pick_precision(precision, device),
            progress=count_scored(sink, name, sequences.tokens.size),
        )
        yield name, {**score.metrics(), "text": task_set.label}


def _check_words(own: DataConfig | None, task: Task) -> None:
    trained = make_task(own) if own is not None and own.name == task.name else None
    words = [[t.word(i) for i in range(t.vocab_size)] for t in (trained, task) if t is not None]
    if trained is None or words[0] != words[1]:
        raise UserError(
            f"the tokens of data={task.name} with these options are not those that the run was trained on; give its "
            "own task, and leave options that change the vocabulary as they were"
        )
