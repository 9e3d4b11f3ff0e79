"""Training one planned run, and scoring its best weights."""

from __future__ import annotations

import time
from typing import Any

import torch

from experiments import data, machine
from experiments.attempt import Attempt
from experiments.evaluation import score_best
from experiments.plan import Plan
from experiments.progress import Sink
from experiments.summary import summarise
from experiments.trainer import silence_lightning


def train(planned: Plan, sink: Sink, workers: int = 1) -> dict[str, Any]:
    """The summary of a run, after training it to the end (or going on from its last checkpoint) and scoring it.

    workers: cells of one sweep that train at the same time, this one included.
    """
    config = planned.config
    silence_lightning()
    torch.set_num_threads(config.trainer.threads)
    device = machine.pick(config.device)
    corpus = data.prepare(config.data, progress=config.trainer.progress)
    attempt = Attempt(planned, corpus, device, sink)
    began = time.perf_counter()
    attempt.fit()
    load = machine.load()
    metrics = score_best(config, corpus, planned.folder.path, device, sink)
    summary = summarise(attempt, metrics, time.perf_counter() - began)
    return {**summary, "workers": workers, "load": load}
