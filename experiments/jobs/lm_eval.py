"""job=lm_eval: a finished run in EleutherAI's lm-evaluation-harness; results go to RUN/lm_eval.csv and the report."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.configuration.compose import given_backend, tell_other_model
from experiments.configuration.schema import Config
from experiments.jobs import Job
from experiments.jobs.list import print_table
from experiments.parallel.group import pick_device, pick_precision
from experiments.runs import load_run, write_splits
from experiments.scoring.evaluate import check_evaluate
from experiments.system import machine, signals
from experiments.system.processes import Bar
from zoo.errors import UserError

FILE = "lm_eval.csv"
COLUMNS = (
    "task",
    "metric",
    "filter",
    "value",
    "stderr",
    "samples",
    "fewshot",
    "version",
    "limit",
    "command",
)
"""Of the file: the harness's names of a task, a metric and the filter of its answers; value and standard error; number
of documents; examples before each; the task's version; what lm_eval.limit was; the command."""
_INSTALL = "pip install -e '.[eval]'"


def run(config: Config) -> None:
    """Print the harness's table of each task and write it into the run's folder, beside those of other tasks.

    Raises UserError for tasks that there are not, data that cannot be loaded, and a harness that is not installed.
    """
    asked = config.lm_eval
    if not asked.tasks:
        raise UserError(
            "job=lm_eval needs tasks: lm_eval.tasks=[arc_easy,wikitext] (lm_eval.include=FOLDER: your own)"
        )
    check_evaluate(config.evaluate)
    try:
        with signals.loading():
            from lm_eval import simple_evaluate
            from lm_eval.tasks import TaskManager

            from experiments.lm_harness import HarnessModel
    except ImportError as error:
        raise UserError(f"job=lm_eval needs lm-evaluation-harness 0.4.13 ({error}); {_INSTALL}") from error
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_path=_folder(asked.include))
    tasks = _matched(asked.tasks, manager)
    device = pick_device(config.device)
    uses = ("decoding", "scoring")
    loaded = load_run(
        config.run, device, uses, precision=config.trainer.precision, backend=given_backend(config)
    )
    tell_other_model(config)
    bar = Bar("lm_eval", config.trainer.progress)
    model = HarnessModel(
        loaded,
        batch_size=config.evaluate.batch_size,
        stride=config.evaluate.stride,
        carry=config.evaluate.carry,
        precision=pick_precision(config.trainer.precision, device),
        sink=bar,
    )
    quiet = contextlib.nullcontext() if config.trainer.progress else _without_bars()
    try:
        with quiet:
            results = simple_evaluate(
                model,
                tasks=tasks,
                num_fewshot=asked.fewshot,
                limit=asked.limit,
                task_manager=manager,
                log_samples=False,
                random_seed=config.seed,
                numpy_random_seed=config.seed,
                torch_random_seed=config.seed,
                fewshot_random_seed=config.seed,
            )
    except UserError:
        raise
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(
            f"the harness cannot run {', '.join(tasks)} ({type(error).__name__}: {error}); most tasks read data from "
            "the Hugging Face hub: give a network, or tasks with local data (lm_eval.include=FOLDER)"
        ) from error
    finally:
        bar.close()
    rows = _rows(results, config.lm_eval.limit)
    write_splits(loaded.folder / FILE, COLUMNS, rows)
    print_table(
        f"{config.run}, {model.tokenizer_name}",
        [
            (
                task,
                metric if how == "none" else f"{metric} ({how})",
                f"{value:.4f}",
                f"± {error:.4f}" if error else "",
            )
            for task, metrics in rows.items()
            for metric, how, value, error, *_ in metrics
        ],
    )
    print(f"\nresults: {loaded.folder / FILE}")


def _rows(results: dict[str, Any], limit: float | None) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of the file by task, without the task's name; no error ("") where the harness has none."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for task, metrics in {**results["results"], **results.get("groups", {})}.items():
        samples = results.get("n-samples", {}).get(task, {}).get("effective", metrics.get("sample_len", 0))
        about = (
            int(samples or 0),
            int(results["n-shot"].get(task) or 0),
            str(results["versions"].get(task, "")),
            "all" if limit is None else f"{limit:g}",
            machine.command(),
        )
        for key, value in metrics.items():
            name, _, how = key.partition(",")
            if how and not name.endswith("_stderr") and isinstance(value, int | float):
                error = metrics.get(f"{name}_stderr,{how}")
                error = float(error) if isinstance(error, int | float) else ""
                rows.setdefault(task, []).append((name, how, float(value), error, *about))
    return rows


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """While inside, the standard error is silent: the harness and its data draw bars of their own."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


def _folder(include: str | None) -> str | None:
    """The folder of tasks of one's own. Raises UserError where it is none."""
    if include is not None and not any(Path(include).expanduser().rglob("*.yaml")):
        raise UserError(f"lm_eval.include={include} is not a folder; give one with tasks (YAML files)")
    return None if include is None else str(Path(include).expanduser())


def _matched(patterns: list[str], manager: Any) -> list[str]:
    """The names of tasks that the patterns name. Raises UserError for one that names none."""
    from zoo.errors import unknown

    matched: dict[str, None] = {}
    for pattern in patterns:
        names = manager.match_tasks([pattern])
        if not names:
            near = unknown("task of lm_eval.tasks", pattern, manager.all_tasks)
            raise UserError(f"{str(near).partition(' Known: ')[0]} `lm-eval ls tasks` lists them")
        matched |= dict.fromkeys(names)
    return list(matched)


JOB = Job(
    "lm_eval",
    "score a finished run on tasks of EleutherAI's lm-evaluation-harness",
    run,
    reads=("run",),
    needs="run=results/NAME/RUN lm_eval.tasks=[NAME,...]",
)
