"""job=evaluate: score a finished run or a checkpoint on the splits of its own text, or on any text."""

from __future__ import annotations

import dataclasses

from experiments import machine
from experiments.data import DataConfig
from experiments.evaluation import TEXT_KEYS, check_evaluate, scores
from experiments.jobs import Job
from experiments.load_run import LoadedRun, load_run
from experiments.progress import Bar
from experiments.schema import Config
from experiments.scoring import format_metrics


def run(config: Config) -> None:
    """Print all four metrics of every split in evaluate.splits, at evaluate.stride (default: half a window).

    With evaluate.carry every token has its whole history instead of a window. Where the command names a text (data=,
    data.path=), that one is scored, cut by the run's saved tokenizer.
    """
    check_evaluate(config.evaluate)
    loaded = load_run(config.run, machine.pick(config.device))
    bar = Bar("evaluate", config.trainer.progress)
    text = named_text(config, loaded)
    for name, score, about in scores(loaded, text, config.evaluate, config.trainer.precision, bar):
        bar.close()
        label = f"{about['text']} · tokenizer {about['tokenizer']}"
        print(format_metrics(name, score.metrics(), label), flush=True)


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
    needs="run=results/NAME/RUN",
)
