"""The summary of a run, as summary.json holds it: configuration, costs, scores and provenance."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from experiments.configuration.compose import label
from experiments.configuration.schema import Config
from experiments.costs import peak_flops
from experiments.costs.model_costs import Costs
from experiments.data import TaskSet
from experiments.data.cache import cache_root
from experiments.parallel import group
from experiments.planning.identity import leaves
from experiments.runs import MetricLog, RunFolder, read_metrics
from experiments.system import machine
from zoo import cost
from zoo.model import LanguageModel

if TYPE_CHECKING:
    from experiments.training.train import Attempt


def summarise(attempt: Attempt, metrics: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The summary of a trained run, as summary.json holds it.

    metrics: split -> metrics of the best weights; seconds: of training and scoring together, in this attempt.
    """
    planned, config = attempt.planned, attempt.planned.config
    rate = _median_rate(attempt.log)
    reached = rate * attempt.costs.training_flops
    peak = peak_flops.peak(attempt.device, cache_root(config.data), above=reached / group.size())
    start = {key: getattr(config.start, key) for key in ("weights", "into", "sha256", "indexer", "gates")}
    return {
        **describe(config, attempt.on_meta, attempt.costs, planned.folder, attempt.device),
        "name": label(config, planned.layers),
        "data": _data_summary(attempt),
        "recipe": _recipe(config, attempt.precision),
        **({} if config.start.weights is None else {"start": start}),
        "metrics": metrics,
        "best_step": attempt.validation.best_step,
        "steps": attempt.steps,
        "stopped": "early" if attempt.validation.out_of_patience else "finished",
        "tokens": attempt.steps * config.tokens_per_step,
        "seconds": round(attempt.metrics.seconds, 3),
        "seconds_with_evaluation": round(seconds, 3),
        "tokens_per_second": rate,
        "mfu": peak_flops.utilisation(reached, group.size() * peak.flops),
        "mfu_peak_flops": peak.flops,
        "mfu_peak_source": peak.source,
        "peak_memory_bytes": machine.peak_memory(attempt.device),
        "recompute": config.trainer.recompute,
        "processes": group.size(),
        "strategy": _strategy(config),
    }


def _strategy(config: Config) -> str | None:
    """Return the strategy of several processes that trained the run, ddp or fsdp; None of one."""
    if group.size() == 1:
        return None
    return "fsdp" if config.trainer.strategy == "fsdp" else "ddp"


def _data_summary(attempt: Attempt) -> dict[str, Any]:
    """Describe the run's data; of a task also what a memory of as many training sequences gets right."""
    description, corpus, config = attempt.corpus.describe(), attempt.corpus, attempt.planned.config
    if not isinstance(corpus, TaskSet):
        return description
    a_step = config.data.batch_size * config.trainer.accumulate
    return {**description, "memorised": corpus.memorised(attempt.steps * a_step)}


def _recipe(config: Config, precision: str) -> dict[str, Any]:
    o, t = config.optim, config.trainer
    return {
        "steps": t.max_steps,
        "batch_size": config.data.batch_size,
        "accumulate": t.accumulate,
        "tokens_per_step": config.tokens_per_step,
        "precision": precision,
        "optimizer": o.name,
        "schedule": o.schedule,
        "lr": o.lr,
        "lr_min": o.lr_min,
        "lr_study": o.lr_study,
        "warmup_steps": o.warmup_steps,
        "weight_decay": o.weight_decay,
        "clip": o.clip,
    }


def _median_rate(log: MetricLog) -> float:
    """The median of the logged tokens a second; 0 where no row has them."""
    rows = [row for row in read_metrics(log.path) if row["split"] == "train" and row["tokens_per_second"]]
    rates = sorted(float(row["tokens_per_second"]) for row in rows)
    return rates[len(rates) // 2] if rates else 0.0


def describe(
    config: Config, model: LanguageModel, costs: Costs, folder: RunFolder, device: torch.device
) -> dict[str, Any]:
    """The items of summary.json that follow from a resolved configuration, and provenance: this code, this machine.

    model: the configuration's, which needs no storage (`meta_model`); costs: its own (`derive_costs`).
    """
    layers, named_after = model.architecture, model.architecture.named_after
    commit, dirty = machine.commit()
    return {
        "schema": 1,
        "experiment": config.name,
        "run": folder.path.name,
        "model": {
            "preset": config.model.preset or named_after.name,
            "pattern": layers.letters,
            "layout": layers.layout,
            "depth": layers.depth,
            "d_model": config.model.d_model,
            "residual": config.model.residual.name,
            "channel": config.model.channel.name,
            "color": layers.color,
            "family": named_after.block.family,
            "match": config.match,
            "match_length": _match_length(config),
        },
        "blocks": [mixer.describe() for mixer in layers.kinds],
        "block_files": folder.block_files(),
        "seed": config.seed,
        "parameters": cost.parameters(model),
        "parameters_non_embedding": cost.parameters_non_embedding(model),
        "flops_per_token": {"forward": costs.forward_flops, "training": costs.training_flops},
        "state_bytes": {str(tokens): size for tokens, size in costs.state_bytes.items()},
        "commit": commit,
        "dirty": dirty,
        "versions": machine.versions(),
        "machine": machine.describe(device),
        "command": machine.command(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _match_length(config: Config) -> int | None:
    """The length at which FLOPs or decode state were matched; None where neither was."""
    return None if config.match in (None, "params") else config.match_length or config.data.seq_len


def figures(summary: dict[str, Any]) -> dict[str, float]:
    """The numbers of a summary as loggers have them: summary/parameters, summary/test/loss, ..."""
    settings = ("schema", "seed", "model", "recipe", "start", "machine", "data")
    numbers = leaves({key: value for key, value in summary.items() if key not in settings})
    return {
        f"summary/{key.removeprefix('metrics.').replace('.', '/')}": float(value)
        for key, value in numbers
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
