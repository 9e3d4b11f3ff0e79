"""One attempt to train a run: its model, batches, callbacks and trainer, put together."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import torch

from experiments import callbacks, machine, peak_flops
from experiments.costs import derive_costs
from experiments.data import Corpus
from experiments.data.config import cache_root
from experiments.factory import make_batches, make_model, tokens_per_step
from experiments.metric_log import MetricLog
from experiments.plan import Plan
from experiments.progress import Sink
from experiments.runs import METRICS
from experiments.schema import Config
from experiments.task import LanguageModelling
from experiments.trainer import make_loggers, make_trainer


class Attempt:
    """The parts that one attempt trains with; `fit` trains. The summary of the run is made from them."""

    def __init__(self, planned: Plan, corpus: Corpus, device: torch.device, sink: Sink) -> None:
        config, folder = planned.config, planned.folder.path
        self.planned, self.corpus, self.device, self.sink = planned, corpus, device, sink
        self.precision = machine.precision(config.trainer.precision, device)
        self.model = make_model(config, corpus)
        self.costs = derive_costs(config, corpus.tokenizer.vocab_size)
        self.peak = peak_flops.peak(device, cache_root(config.data))
        self.task = LanguageModelling(
            self.model, config, make_batches(config, corpus), corpus.tokenizer.to_json()
        )
        self.log = MetricLog(folder / METRICS, [f"aux:{name}" for name in self.model.aux_weights])
        self.metrics = callbacks.MetricRows(
            self.log,
            config.trainer.log_every,
            tokens_per_step(config),
            self.costs.training_flops,
            self.peak.flops,
        )
        self.validation = callbacks.Validation(
            config, corpus.splits["validation"], self.metrics, folder, corpus.document_bos
        )

    def fit(self) -> None:
        """Run the trainer from the newest readable checkpoint, if there is one."""
        config, folder = self.planned.config, self.planned.folder
        trainer = self._trainer(config, folder.path)
        point = callbacks.restore_point(folder.checkpoints)
        try:
            trainer.fit(self.task, ckpt_path=None if point is None else str(point), weights_only=True)
        except SystemExit as stop:  # what Lightning makes of Ctrl-C, whose message is the command line's
            raise (stop.__context__ or stop) from None
        self.steps = trainer.global_step

    def _trainer(self, config: Config, folder: Path) -> pl.Trainer:
        t = config.trainer
        actions: list[pl.Callback] = [
            self.metrics,
            self.validation,
            callbacks.ExportWeights(t.keep_steps, self.validation, self.metrics, folder),
            callbacks.Checkpoints(folder / "checkpoints", t.checkpoint_every, self.metrics),
            callbacks.ReportProgress(self.sink),
        ]
        if t.probe_every is not None:
            actions.insert(
                3, callbacks.ProbeTraining(config, self.corpus.splits["validation"], self.metrics, folder)
            )
        if t.max_minutes is not None:
            actions.append(callbacks.TimeLimit(t.max_minutes, folder / "checkpoints"))
        return make_trainer(config, self.device, actions, folder, loggers=make_loggers(config, folder))
