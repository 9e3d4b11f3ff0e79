"""job=evaluate: score a finished run or a checkpoint on the splits of its own text."""

from __future__ import annotations

from experiments import machine
from experiments.jobs import Job
from experiments.load_run import load_corpus, load_run
from experiments.progress import Bar
from experiments.schema import Config
from experiments.scoring import format_metrics, score_model
from zoo.errors import UserError


def run(config: Config) -> None:
    """Print all four metrics of every split in evaluate.splits, at evaluate.stride (default: half a window)."""
    device = machine.pick(config.device)
    loaded = load_run(config.run, device)
    corpus = load_corpus(loaded, config.data)
    length = loaded.model.seq_len
    if not 1 <= (config.evaluate.stride or 1) <= length:
        raise UserError(
            f"evaluate.stride={config.evaluate.stride} must be from 1 to the model's length {length}"
        )
    bar = Bar("evaluate", config.trainer.progress)
    for name in config.evaluate.splits:
        score = score_model(loaded.model, config, corpus, name, device, bar)
        bar.close()
        print(format_metrics(name, score.metrics(), corpus.describe()[name]))


JOB = Job(
    "evaluate", "score a finished run or checkpoint on held-out text", run, needs="run=results/NAME/RUN"
)
