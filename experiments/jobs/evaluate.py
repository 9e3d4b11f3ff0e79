"""job=evaluate: score a finished run or a checkpoint on the splits of its own text."""

from __future__ import annotations

from experiments import machine
from experiments.jobs.train import metrics_line
from experiments.load_run import open_text, open_trained
from experiments.progress import Bar
from experiments.schema import Config
from experiments.scoring import score_split
from experiments.training import counting, document_bos
from zoo.errors import UserError


def run(config: Config) -> None:
    """Print all four metrics of every split in evaluate.splits, at evaluate.stride (default: half a window)."""
    device = machine.pick(config.device)
    trained = open_trained(config.run, device)
    corpus = open_text(trained, config.data)
    stride = config.evaluate.stride or max(1, trained.model.seq_len // 2)
    if not 1 <= stride <= trained.model.seq_len:
        raise UserError(
            f"evaluate.stride={stride} must be from 1 to the model's length {trained.model.seq_len}"
        )
    bar = Bar("evaluate", config.trainer.progress)
    for name in config.evaluate.splits:
        score = score_split(
            trained.model,
            corpus.splits[name],
            stride=stride,
            batch_size=config.evaluate.batch_size,
            document_bos=document_bos(corpus),
            precision=machine.precision(config.trainer.precision, device),
            progress=counting(bar, name, len(corpus.splits[name].tokens) - 1),
        )
        bar.close()
        print(metrics_line(name, score.metrics(), corpus.describe()[name]))
