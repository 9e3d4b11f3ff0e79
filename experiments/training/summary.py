"""The summary of a run: its configuration, costs, scores and provenance."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from experiments.configuration.compose import dominant_mixer, label, model_color
from experiments.configuration.schema import Config
from experiments.costs import peak_flops
from experiments.data import TaskSet
from experiments.data.cache import cache_root
from experiments.parallel import group
from experiments.runs.folders import MetricLog, read_metrics
from experiments.system import machine
from zoo import cost, registry
from zoo.config import layout_name

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
    commit, dirty = machine.commit()
    return {
        "schema": 1,
        "experiment": config.name,
        "run": planned.run,
        "name": label(config, planned.letters),
        "model": _model_summary(config, planned.letters),
        "blocks": [registry.mixer_by_letter()[x].describe() for x in sorted(set(planned.letters))],
        "block_files": planned.folder.block_files(),
        "seed": config.seed,
        "data": _data_summary(attempt),
        "recipe": _recipe(config, attempt.precision),
        "parameters": cost.parameters(attempt.model),
        "parameters_non_embedding": cost.parameters_non_embedding(attempt.model),
        "flops_per_token": {
            "forward": attempt.costs.forward_flops,
            "training": attempt.costs.training_flops,
        },
        "state_bytes": {str(tokens): size for tokens, size in attempt.costs.state_bytes.items()},
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
        "commit": commit,
        "dirty": dirty,
        "versions": machine.versions(),
        "machine": machine.describe(attempt.device),
        "command": machine.command(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _strategy(config: Config) -> str | None:
    """Return the strategy of several processes that trained the run, ddp or fsdp; None of one."""
    if group.size() == 1:
        return None
    return "fsdp" if config.trainer.strategy == "fsdp" else "ddp"


def _model_summary(config: Config, letters: str) -> dict[str, Any]:
    block = dominant_mixer(letters)
    return {
        "preset": config.model.preset or block.name,
        "pattern": letters,
        "layout": layout_name(letters),
        "depth": len(letters),
        "d_model": config.model.d_model,
        "residual": config.model.residual.name,
        "channel": config.model.channel.name,
        "color": model_color(config.model, letters),
        "family": block.family,
        "match": config.match,
        "match_length": _match_length(config),
    }


def _data_summary(attempt: Attempt) -> dict[str, Any]:
    """Describe the run's data; of a task also what a memory of as many training sequences gets right."""
    told, corpus, config = attempt.corpus.describe(), attempt.corpus, attempt.planned.config
    if not isinstance(corpus, TaskSet):
        return told
    a_step = config.data.batch_size * config.trainer.accumulate
    return {**told, "memorised": corpus.memorised(attempt.steps * a_step)}


def _match_length(config: Config) -> int | None:
    """The length at which FLOPs or decode state were matched; None where neither was."""
    return None if config.match in (None, "params") else config.match_length or config.data.seq_len


def _recipe(config: Config, precision: str) -> dict[str, Any]:
    o, t = config.optim, config.trainer
    return {
        "steps": t.max_steps,
        "batch_size": config.data.batch_size,
        "accumulate": t.accumulate,
        "tokens_per_step": config.tokens_per_step,
        "precision": precision,
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
