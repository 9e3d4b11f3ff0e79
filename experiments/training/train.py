"""Training one planned run: the trainer, an attempt and its parts, the score of its best weights."""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import zoo
from experiments import data
from experiments.configuration.schema import Config
from experiments.costs import peak_flops
from experiments.costs.model_costs import Costs, Utilisation, derive_costs
from experiments.data import Batches, Corpus, TaskSet
from experiments.data.cache import cache_root
from experiments.data.task_set import TaskBatches
from experiments.parallel import group
from experiments.parallel.strategies import replicate, shard
from experiments.planning.identity import leaves
from experiments.planning.plan import Plan
from experiments.runs import METRICS, MetricLog, find_weights, step_of
from experiments.scoring.text import score_best
from experiments.system import machine
from experiments.system.processes import Sink, discard
from experiments.training import callbacks, pl
from experiments.training.lightning_modules import LanguageModelling, SyntheticTask, compiled
from experiments.training.summary import figures, summarise
from zoo.errors import UserError
from zoo.model import LanguageModel, meta_model
from zoo.recompute import Recompute

# Read when Lightning forks; tokenising is done by then.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def make_model(config: Config, corpus: Corpus | TaskSet) -> LanguageModel:
    """The model of a configuration with its initial weights, on the CPU."""
    how = {"seq_len": config.data.seq_len, "seed": config.seed}
    if config.start.weights is None:
        model = LanguageModel(config.model, vocab_size=corpus.vocab_size, **how)
    else:
        source = find_weights(config.start.weights)
        if isinstance(corpus, Corpus) and source.tokenizer().identity() != corpus.tokenizer.identity():
            raise UserError(
                f"start.weights={config.start.weights} were trained with another tokenizer than "
                f"data.tokenizer={config.data.tokenizer} gives of this text; leave data.tokenizer out"
            )
        model = zoo.convert(source.load(), config.model, **how)
    if config.trainer.recompute != "none":
        model.recompute = Recompute(config.trainer.recompute, config.trainer.recompute_block)
    return model


def make_batches(config: Config, corpus: Corpus | TaskSet) -> Batches | TaskBatches:
    """The training batches of a configuration."""
    if isinstance(corpus, TaskSet):
        return corpus.batches(config.seed)
    d, tokenizer = config.data, corpus.tokenizer
    return Batches(corpus.splits["train"], d.seq_len, d.batch_size, config.seed, d.pack, tokenizer.bos_id)


def spread(model: LanguageModel, config: Config, device: torch.device) -> nn.Module:
    """Return what to compute losses with: the model, or in one of several processes its replica or its shards."""
    if group.size() == 1:
        return compiled(model, config)
    if config.trainer.strategy == "fsdp":
        return shard(model, device, reshard=config.trainer.reshard)
    return replicate(model, compiled(model, config), device)


def make_trainer(
    config: Config, device: torch.device, actions: list[pl.Callback], folder: Path, loggers: Any = False
) -> pl.Trainer:
    """The trainer of a configuration, with `actions` in place of Lightning's own validation and checkpoints.

    Lightning sees one device: processes are started by torchrun, and models arrive wrapped (experiments.parallel), so
    that it starts none again with the raw command line.
    """
    from lightning.pytorch.plugins.environments import LightningEnvironment  # after `pl`

    half = group.pick_precision(config.trainer.precision, device) == "bf16"
    return pl.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index or 0] if device.type == "cuda" else 1,
        precision="bf16-mixed" if half else "32-true",
        max_steps=config.trainer.max_steps,
        accumulate_grad_batches=group.share(config.trainer.accumulate),
        callbacks=[callbacks.OwnSignals(), *actions],
        # Not the environment that Lightning finds: under Slurm it would requeue the job, which the engine does.
        plugins=[callbacks.AtomicCheckpointIO(), LightningEnvironment()],
        logger=loggers,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=str(folder),
    )


def make_loggers(config: Config, folder: Path) -> Any:
    """Lightning's loggers that trainer.loggers names, writing into the run folder; False for none.

    Of several processes the main one logs.
    """
    if not group.is_main():
        return False
    loggers: list[Any] = []
    if "tensorboard" in config.trainer.loggers:
        place = {"name": "tensorboard", "version": "", "default_hp_metric": False}
        loggers.append(pl.loggers.TensorBoardLogger(str(folder), **place))
    if "wandb" in config.trainer.loggers:
        loggers.append(
            pl.loggers.WandbLogger(
                project="archzoo", group=config.name, name=folder.name, save_dir=str(folder)
            )
        )
    if "mlflow" in config.trainer.loggers:
        place = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlflow").absolute().as_uri()
        loggers.append(_mlflow(config.name, folder.name, place))
    return loggers or False


def _mlflow(experiment: str, run: str, place: str) -> Any:
    """MLflow's logger of a run, which goes on where an earlier attempt has logged it."""
    os.environ.setdefault(
        "MLFLOW_ALLOW_FILE_STORE", "true"
    )  # a folder, which newer versions ask to be allowed
    names = {"experiment_name": experiment, "run_name": run, "tracking_uri": place}
    from mlflow.tracking import MlflowClient

    client = MlflowClient(place)
    if (existing := client.get_experiment_by_name(experiment)) is not None:
        before = client.search_runs([existing.experiment_id], f"attributes.run_name = '{run}'")
        names |= {"run_id": before[0].info.run_id} if before else {}
    return pl.loggers.MLFlowLogger(**names)


def configured(planned: Plan) -> dict[str, Any]:
    """A run's configuration as loggers have it: all that decides its result, and what its text is called."""
    return dict(leaves({"name": planned.config.name, "text": planned.config.data.name, **planned.identity}))


def silence_lightning() -> None:
    """Switch off Lightning's tips and PyTorch's scheduler warning, which would interrupt our progress bar."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")


class Attempt:
    """The parts that one attempt trains with; `fit` trains. The summary of the run is made from them."""

    def __init__(self, planned: Plan, corpus: Corpus | TaskSet, device: torch.device, sink: Sink) -> None:
        config, folder = planned.config, planned.folder.path
        self.planned, self.corpus, self.device, self.sink = planned, corpus, device, sink
        self.precision = group.pick_precision(config.trainer.precision, device)
        self.model = make_model(config, corpus)
        synthetic = isinstance(corpus, TaskSet)
        made = SyntheticTask if synthetic else LanguageModelling
        compute = spread(self.model, config, device)
        self.task = made(self.model, config, make_batches(config, corpus), corpus.card, compute)
        more = SyntheticTask.measures if synthetic else ()
        self.log = MetricLog(folder / METRICS, [*(f"aux:{name}" for name in self.model.aux_weights), *more])
        self.utilisation = Utilisation(lambda: self.costs.training_flops, self._peak)
        self.metrics = callbacks.MetricRows(
            self.log, config.trainer.log_every, config.tokens_per_step, self.utilisation
        )
        self.validation = (
            callbacks.TaskValidation(config, corpus, self.metrics, folder)
            if isinstance(corpus, TaskSet)
            else callbacks.Validation(
                config, corpus.splits["validation"], self.metrics, folder, corpus.document_bos
            )
        )

        self.exports = callbacks.ExportWeights(
            config.trainer.keep_steps, self.validation, self.metrics, folder
        )

    @functools.cached_property
    def costs(self) -> Costs:
        """FLOPs and decode state of the run's model, counted when a row or the summary asks for them."""
        return derive_costs(self.on_meta, self.model.seq_len)

    @property
    def on_meta(self) -> LanguageModel:
        """The run's model without storage."""
        return meta_model(self.model.config, vocab_size=self.model.vocab_size, seq_len=self.model.seq_len)

    def _peak(self) -> float:
        """The peak of the run's devices together; measured, if it has to be, between two steps."""
        return group.size() * peak_flops.peak(self.device, cache_root(self.planned.config.data)).flops

    def fit(self) -> None:
        """Run the trainer from the newest checkpoint that it can go on from, if there is one.

        Raises what ended it: NonFinite, Paused, KeyboardInterrupt.
        """
        config, folder = self.planned.config, self.planned.folder
        trainer = self._trainer(config, folder.path)

        def check(step: int, checkpoint: Any) -> None:
            callbacks.check_checkpoint(step, checkpoint, self.task, self.metrics, self.validation)

        point = callbacks.latest_checkpoint(folder.checkpoints, check)
        self.exports.resumed = 0 if point is None else step_of(point)
        self.loggers = trainer.loggers
        for logger in trainer.loggers:
            logger.log_hyperparams(configured(self.planned))
        try:
            trainer.fit(self.task, ckpt_path=None if point is None else str(point), weights_only=True)
        except SystemExit as stop:  # Lightning's answer to Ctrl-C; the command line prints the message
            raise (stop.__context__ or stop) from None
        self.steps = trainer.global_step

    def tell_loggers(self, summary: dict[str, Any]) -> None:
        """Hand the summary's figures to the other loggers, and end what they have open."""
        for logger in self.loggers:
            logger.log_metrics(figures(summary), self.steps)
            logger.finalize("success")
            if isinstance(logger, pl.loggers.WandbLogger):
                logger.experiment.finish()  # lest the next run of this process go on with it

    def _trainer(self, config: Config, folder: Path) -> pl.Trainer:
        t = config.trainer
        actions: list[pl.Callback] = [
            self.metrics,
            self.validation,
            self.exports,
            callbacks.Checkpoints(folder / "checkpoints", t.checkpoint_every, self.metrics),
            callbacks.ReportProgress(self.sink),
            callbacks.Pause(t.max_minutes, t.pause_at, folder / "checkpoints"),
        ]
        if t.probe_every is not None:
            validation = self.corpus.splits["validation"]
            probing = callbacks.ProbeTraining(config, validation, self.metrics, folder)
            actions.insert(3, probing)  # before the checkpoint
        return make_trainer(config, self.device, actions, folder, loggers=make_loggers(config, folder))


def train(planned: Plan, sink: Sink, workers: int = 1) -> dict[str, Any]:
    """The summary of a run, after training it to the end (from its last checkpoint on, if there is one) and scoring it.

    Of several processes the main one scores, or those that hold a sequence together with it, and it has the summary;
    the others have nothing.
    workers: cells of one sweep that train at the same time, this one included.
    """
    config = planned.config
    silence_lightning()
    torch.set_num_threads(config.trainer.threads)
    device = group.own_device(group.pick_device(config.device))
    corpus = data.prepare(config.data, progress=config.trainer.progress)
    attempt = Attempt(planned, corpus, device, sink)
    began = time.perf_counter()
    attempt.fit()
    load = machine.load()
    group.barrier()  # the best weights are written
    if not group.holds_main_s_sequence():
        return {}
    metrics = score_best(
        config,
        corpus,
        planned.folder.path,
        device,
        sink if group.is_main() else discard,
        config.evaluate.splits,
        group.sequence(),
    )
    if not group.is_main():
        return {}
    seconds = time.perf_counter() - began - attempt.utilisation.seconds
    summary = {**summarise(attempt, metrics, seconds), "workers": workers, "load": load}
    attempt.tell_loggers(summary)
    if group.sequence() is None:  # one device holds a whole sequence
        from experiments.probing.held_out import notices_of_trained

        for line in notices_of_trained(planned.folder.path, planned.layers, corpus, device):
            print(f"notice: {planned.title}: {line}", file=sys.stderr, flush=True)
    return summary


def score_more(planned: Plan, sink: Sink) -> dict[str, Any]:
    """The summary of a complete run with scores of the splits that it was not scored on (`Plan.unscored`) added.

    `scored_later` says by which version of the code, and when.
    """
    config, summary, splits = planned.config, planned.folder.summary(), planned.unscored
    torch.set_num_threads(config.trainer.threads)
    corpus = data.prepare(config.data, progress=config.trainer.progress)
    device = group.own_device(group.pick_device(config.device))
    metrics = score_best(config, corpus, planned.folder.path, device, sink, splits)
    note = {"commit": machine.commit()[0], "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    later = {**summary.get("scored_later", {}), **{name: dict(note) for name in splits}}
    return {**summary, "metrics": {**summary.get("metrics", {}), **metrics}, "scored_later": later}
