"""Scoring a model on the held-out splits that a configuration names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import zoo
from experiments import machine
from experiments.carried_scoring import score_carried
from experiments.data import Corpus
from experiments.progress import Sink
from experiments.schema import Config
from experiments.scoring import Score, score_split
from zoo.model import LanguageModel


def score_best(
    config: Config, corpus: Corpus, folder: Path, device: torch.device, sink: Sink
) -> dict[str, dict[str, Any]]:
    """Split -> metrics of the best weights in a run folder, for every split in evaluate.splits."""
    model = zoo.load(folder, device)
    return {
        name: score_model(model, config, corpus, name, device, sink).metrics()
        for name in config.evaluate.splits
    }


def score_model(
    model: LanguageModel, config: Config, corpus: Corpus, name: str, device: torch.device, sink: Sink
) -> Score:
    """The score of a model on a split, windows moving by evaluate.stride (null: half the model's length).

    With evaluate.carry there are no windows: the decode state is carried through the text.
    """
    split = corpus.splits[name]
    options = {
        "batch_size": config.evaluate.batch_size,
        "document_bos": corpus.document_bos,
        "precision": machine.precision(config.trainer.precision, device),
        "progress": _counting(sink, name, len(split.tokens) - 1),
    }
    if config.evaluate.carry:
        return score_carried(model, split, **options)
    return score_split(model, split, stride=config.evaluate.stride or max(1, model.seq_len // 2), **options)


def _counting(sink: Sink, phase: str, total: int) -> Callable[[int], None]:
    """A function that adds up how many tokens of a split are scored, and tells the sink."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        sink(phase, done, total)

    return add
