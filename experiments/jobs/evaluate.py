"""job=evaluate: score a finished run or a checkpoint on the splits of its own text."""

from __future__ import annotations

import dataclasses

from experiments import data, machine
from experiments.evaluate import score_split
from experiments.jobs.train import metrics_line
from experiments.progress import Bar
from experiments.schema import Config
from experiments.trained import open_trained
from experiments.training import counting, document_bos
from zoo.errors import UserError


def run(config: Config) -> None:
    """Print all four metrics of every split in evaluate.splits, at evaluate.stride (default: half a window)."""
    device = machine.pick(config.device)
    trained = open_trained(config.run, device)
    # The run's own text; where it lies may have changed since, so paths given now win.
    given = {k: v for k in ("path", "train_path", "gpt2_path", "cache_dir") if (v := getattr(config.data, k))}
    cfg = dataclasses.replace(trained.data, **given)
    data.check(cfg)
    corpus = data.prepare(cfg)
    if corpus.tokenizer.identity() != trained.tokenizer.identity():
        raise UserError(
            f"the text at hand gives another tokenizer than {config.run} was trained with; restore its text"
        )
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
