"""Training one planned run with Lightning, and scoring its best weights."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import lightning.pytorch as pl
import torch

import zoo
from experiments import callbacks, data, machine, peak_flops
from experiments.data.config import cache_root
from experiments.metric_log import Rows
from experiments.plan import Plan, dominant, label
from experiments.progress import Sink
from experiments.runs import METRICS
from experiments.schema import Config
from experiments.scoring import score_split
from experiments.task import LanguageModelling
from zoo import cost, pattern, registry
from zoo.model import LanguageModel
from zoo.recompute import Recompute


def train(planned: Plan, sink: Sink, workers: int = 1) -> dict[str, Any]:
    """Train to the end (or go on from the last checkpoint), score the best weights; returns the run's summary.

    workers: cells of one sweep that train at the same time, this one included.
    """
    config = planned.config
    quiet()
    torch.set_num_threads(config.trainer.threads)
    device = machine.pick(config.device)
    corpus = data.prepare(config.data, progress=config.trainer.progress)
    attempt = _Attempt(planned, corpus, device, sink)
    began = time.perf_counter()
    attempt.fit()
    load = machine.load()
    metrics = score_best(config, corpus, planned.folder.path, device, sink)
    summary = _summary(attempt, metrics, time.perf_counter() - began)
    return {**summary, "workers": workers, "load": load}


class _Attempt:
    """The pieces of one training attempt, put together."""

    def __init__(self, planned: Plan, corpus: data.Corpus, device: torch.device, sink: Sink) -> None:
        config, folder = planned.config, planned.folder
        self.planned, self.corpus, self.device = planned, corpus, device
        self.precision = machine.precision(config.trainer.precision, device)
        self.model = make_model(config, corpus)
        self.flops = _flops(config, corpus.tokenizer.vocab_size)
        self.peak = peak_flops.peak(device, cache_root(config.data))
        self.bos = document_bos(corpus)
        self.task = LanguageModelling(
            self.model, config, make_batches(config, corpus), tokenizer_card(corpus)
        )
        names = [f"aux:{name}" for name in self.model.aux_weights]
        self.rows = Rows(folder.path / METRICS, names)
        self.metrics = callbacks.MetricRows(
            self.rows,
            config.trainer.log_every,
            tokens_per_step(config),
            self.flops["training"],
            self.peak.flops,
        )
        self.validation = callbacks.Validation(
            config, corpus.splits["validation"], self.metrics, folder.path, self.bos
        )
        self.sink = sink

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
            callbacks.Weights(t.keep_steps, self.validation, self.metrics, folder),
            callbacks.Checkpoints(folder / "checkpoints", t.checkpoint_every, self.metrics),
            callbacks.Progress(self.sink),
        ]
        if t.probe_every is not None:
            actions.insert(
                3, callbacks.Probing(config, self.corpus.splits["validation"], self.metrics, folder)
            )
        if t.max_minutes is not None:
            actions.append(callbacks.TimeLimit(t.max_minutes, folder / "checkpoints"))
        return make_trainer(config, self.device, actions, folder, loggers=_loggers(config, folder))


def make_trainer(
    config: Config, device: torch.device, actions: list[pl.Callback], folder: Path, loggers: Any = False
) -> pl.Trainer:
    """Lightning's trainer with everything off that we do ourselves (validation, checkpoints, bars)."""
    half = machine.precision(config.trainer.precision, device) == "bf16"
    return pl.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if half else "32-true",
        max_steps=config.trainer.max_steps,
        accumulate_grad_batches=config.trainer.accumulate,
        callbacks=actions,
        plugins=[callbacks.AtomicFiles()],
        logger=loggers,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=str(folder),
    )


def make_batches(config: Config, corpus: data.Corpus) -> data.Batches:
    """The training batches of a configuration."""
    d, tokenizer = config.data, corpus.tokenizer
    return data.Batches(
        corpus.splits["train"], d.seq_len, d.batch_size, config.seed, d.pack, tokenizer.bos_id
    )


def make_model(config: Config, corpus: data.Corpus) -> LanguageModel:
    """The model of a configuration with its initial weights, on the CPU."""
    vocabulary = corpus.tokenizer.vocab_size
    model = LanguageModel(config.model, vocab_size=vocabulary, seq_len=config.data.seq_len, seed=config.seed)
    model.recompute = Recompute(config.trainer.recompute, config.trainer.recompute_block)
    return model


def score_best(
    config: Config, corpus: data.Corpus, folder: Path, device: torch.device, sink: Sink
) -> dict[str, dict[str, Any]]:
    """Metrics of the best weights in a run folder on every split that config.evaluate names."""
    model = zoo.load(folder, device)
    return {name: _score(model, config, corpus, name, device, sink) for name in config.evaluate.splits}


def _score(
    model: LanguageModel, config: Config, corpus: data.Corpus, name: str, device: torch.device, sink: Sink
) -> dict[str, Any]:
    split = corpus.splits[name]
    return score_split(
        model,
        split,
        stride=config.evaluate.stride or max(1, model.seq_len // 2),
        batch_size=config.evaluate.batch_size,
        document_bos=document_bos(corpus),
        precision=machine.precision(config.trainer.precision, device),
        progress=counting(sink, name, len(split.tokens) - 1),
    ).metrics()


def counting(sink: Sink, phase: str, total: int) -> Callable[[int], None]:
    """A function that adds up how many tokens of a split are scored and tells the sink."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        sink(phase, done, total)

    return add


def tokens_per_step(config: Config) -> int:
    """Tokens an optimiser step sees."""
    return config.data.batch_size * config.data.seq_len * config.trainer.accumulate


def document_bos(corpus: data.Corpus) -> int | None:
    """The separator at which sequences start anew when documents are packed."""
    return corpus.tokenizer.bos_id if corpus.config.pack == "document" else None


def tokenizer_card(corpus: data.Corpus) -> str:
    """The tokenizer as it travels with a model."""
    return corpus.tokenizer.to_json()


def quiet() -> None:
    """Lightning's tips and PyTorch's advice are not for the people who read our progress."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")


def _loggers(config: Config, folder: Path) -> Any:
    loggers: list[Any] = []
    if "tensorboard" in config.trainer.loggers:
        from lightning.pytorch.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(str(folder), name="tensorboard", version=""))
    if "wandb" in config.trainer.loggers:
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(
            WandbLogger(project="archzoo", group=config.name, name=folder.name, save_dir=str(folder))
        )
    return loggers or False


def _flops(config: Config, vocab_size: int) -> dict[str, float]:
    model = cost.on_meta(config.model, vocab_size=vocab_size, seq_len=config.data.seq_len)
    length = config.data.seq_len
    return {
        "forward": cost.flops_per_token(model, length),
        "training": cost.flops_per_token(model, length, backward=True),
    }


def _summary(attempt: _Attempt, metrics: dict[str, Any], seconds: float) -> dict[str, Any]:
    planned, config = attempt.planned, attempt.planned.config
    rows = [row for row in _train_rows(attempt.rows) if row["tokens_per_second"]]
    rate = _median([float(row["tokens_per_second"]) for row in rows])
    reached = rate * attempt.flops["training"]
    peak = peak_flops.peak(attempt.device, cache_root(config.data), above=reached)
    commit, dirty = machine.commit()
    return {
        "schema": 1,
        "experiment": config.name,
        "run": planned.run,
        "name": label(config, planned.letters),
        "model": _model_summary(config, planned.letters),
        "blocks": [registry.mixer_by_letter()[x].describe() for x in sorted(set(planned.letters))],
        "seed": config.seed,
        "data": attempt.corpus.describe(),
        "recipe": _recipe(config, attempt.precision),
        "parameters": cost.parameters(attempt.model),
        "parameters_non_embedding": cost.parameters_non_embedding(attempt.model),
        "flops_per_token": attempt.flops,
        "state_bytes": _state_bytes(config, attempt.corpus.tokenizer.vocab_size),
        "metrics": metrics,
        "best_step": attempt.validation.best_step,
        "steps": attempt.steps,
        "stopped": "early" if attempt.validation.out_of_patience else "finished",
        "tokens": attempt.steps * tokens_per_step(config),
        "seconds": round(attempt.metrics.seconds, 3),
        "seconds_with_evaluation": round(seconds, 3),
        "tokens_per_second": rate,
        "mfu": peak_flops.utilisation(reached, peak.flops),
        "mfu_peak_flops": peak.flops,
        "mfu_peak_source": peak.source,
        "peak_memory_bytes": machine.peak_memory(attempt.device),
        "recompute": config.trainer.recompute,
        "commit": commit,
        "dirty": dirty,
        "versions": machine.versions(),
        "machine": machine.describe(attempt.device),
        "command": machine.command(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _model_summary(config: Config, letters: str) -> dict[str, Any]:
    block, scheme = dominant(letters), registry.get("residual", config.model.residual.name)
    return {
        "preset": config.model.preset or block.name,
        "pattern": letters,
        "layout": pattern.layout_name(letters),
        "depth": len(letters),
        "d_model": config.model.d_model,
        "residual": config.model.residual.name,
        "channel": config.model.channel.name,
        # Plain attention in several streams is known by its streams.
        "color": scheme.color if set(letters) == {"F"} else block.color,
        "family": block.family,
    }


def _recipe(config: Config, precision: str) -> dict[str, Any]:
    o, t = config.optim, config.trainer
    return {
        "steps": t.max_steps,
        "batch_size": config.data.batch_size,
        "accumulate": t.accumulate,
        "tokens_per_step": tokens_per_step(config),
        "precision": precision,
        "lr": o.lr,
        "lr_min": o.lr_min,
        "warmup_steps": o.warmup_steps,
        "weight_decay": o.weight_decay,
        "clip": o.clip,
    }


def _state_bytes(config: Config, vocab_size: int) -> dict[str, int]:
    model = cost.on_meta(config.model, vocab_size=vocab_size, seq_len=config.data.seq_len)
    return {str(n): cost.state_bytes(model, n) for n in (1024, 8192, 131072)}


def _train_rows(rows: Rows) -> list[dict[str, str]]:
    from experiments.metric_log import read

    return [row for row in read(rows.path) if row["split"] == "train"]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
