"""job=evaluate: score a finished run or a checkpoint on the splits of its own text, or on any text."""

from __future__ import annotations

import dataclasses

from experiments.configuration.compose import given_backend, tell_other_model
from experiments.configuration.schema import Config
from experiments.data import DataConfig
from experiments.jobs import Job
from experiments.parallel.group import pick_device
from experiments.runs import LoadedRun, load_run
from experiments.scoring.evaluate import TEXT_KEYS, check_evaluate, scores, task_of, task_scores, with_options
from experiments.scoring.text import format_metrics
from experiments.system.processes import Bar
from zoo.errors import UserError


def run(config: Config) -> None:
    """Print all four metrics of every split in evaluate.splits, at evaluate.stride (default: half a window).

    With evaluate.carry every token has its whole history instead of a window. Where the command names a text (data=,
    data.path=), that one is scored, cut by the run's saved tokenizer. A run of a task is scored on its held-out
    sequences, with other options where the command sets some (data.tasks.NAME).
    """
    check_evaluate(config.evaluate)
    task = task_of(config.run)
    if task is not None:
        _run_task(config, task)
        return
    uses = ("decoding",) if config.evaluate.carry else ("scoring",)
    how = {"precision": config.trainer.precision, "backend": given_backend(config)}
    loaded = load_run(config.run, pick_device(config.device), uses, **how)
    tell_other_model(config)
    bar = Bar("evaluate", config.trainer.progress)
    text = named_text(config, loaded)
    for name, score, about in scores(loaded, text, config.evaluate, config.trainer.precision, bar):
        bar.close()
        label = f"{about['text']} · tokenizer {about['tokenizer']}"
        print(format_metrics(name, score.metrics(), label), flush=True)


def _run_task(config: Config, task: DataConfig) -> None:
    """Print the metrics of a run of a task, with the options of data.tasks.NAME that the command sets."""
    asked = {key for key in config.given if key.split(".")[0] == "data" and key != "data.cache_dir"}
    prefix = f"data.tasks.{task.name}."
    for key in sorted(asked):
        if not key.startswith(prefix) and (key, config.data.name) != ("data", task.name):
            raise UserError(
                f"{config.run} was trained on the task {task.name}, to which {key}=... does not apply; leave it out"
            )
    chosen = getattr(config.data.tasks, task.name)
    options = {
        key.removeprefix(prefix): getattr(chosen, key.removeprefix(prefix)) for key in asked if prefix in key
    }
    asked_for = with_options(task, options) if options else task
    tell_other_model(config)
    bar = Bar("evaluate", config.trainer.progress)
    device, precision = pick_device(config.device), config.trainer.precision
    result = task_scores(
        config.run, asked_for, config.evaluate, precision, device, bar, given_backend(config)
    )
    for name, metrics in result:
        bar.close()
        print(format_metrics(name, metrics, metrics["text"]), flush=True)


def named_text(config: Config, loaded: LoadedRun) -> DataConfig | None:
    """The text that the command line names; None where it names none, and the run's own is meant."""
    paths = {"data", *(f"data.{key}" for key in (*TEXT_KEYS, "gpt2_path", "cache_dir"))}
    if not config.given & paths:
        return None
    named = config.given & {"data", "data.name"}
    text = config.data if named else dataclasses.replace(config.data, name=loaded.data.name)
    kept = {
        key: getattr(loaded.data, key) for key in TEXT_KEYS if not named and f"data.{key}" not in config.given
    }
    return dataclasses.replace(text, **kept)


JOB = Job(
    "evaluate",
    "score a finished run or checkpoint on held-out text, or on any text (data=text data.path=...)",
    run,
    reads=("run",),
    needs="run=results/NAME/RUN",
)
