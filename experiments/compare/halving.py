"""Successive halving: every trial of a model trains to a part of its steps, the better half of them to the end.

After Jamieson and Talwalkar (2016), with one halving: at a fixed schedule a rate's loss early in it tells only roughly
where it ends, and half of the trials is a cut wide enough for that (docs/comparing.md says how often).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from experiments.compare.trials import SPLIT, Trial
from experiments.configuration.schema import Config
from experiments.planning.plan import Plan
from experiments.runs.folders import METRICS, read_metrics
from zoo.errors import UserError

PART = 4
"""Trials are halved after max_steps / PART steps, at the last validation until then."""


def halving_step(config: Config) -> int:
    """The step at which trials are compared. Raises UserError where nothing is validated until then."""
    trainer = config.trainer
    step = trainer.max_steps // PART // trainer.val_every * trainer.val_every
    if step < 1:
        raise UserError(
            f"compare.halving compares validations of the first {trainer.max_steps // PART} steps (a quarter of "
            f"trainer.max_steps), and trainer.val_every={trainer.val_every}; lower that"
        )
    return step


def first_part(trial: Trial) -> Plan:
    """The trial's run, to be paused where trials are halved."""
    config = trial.planned.config
    trainer = dataclasses.replace(config.trainer, pause_at=halving_step(config))
    return dataclasses.replace(trial.planned, config=dataclasses.replace(config, trainer=trainer))


def early_loss(trial: Trial) -> float | None:
    """A trial's last validation loss until the halving; infinite where it diverged, None where it is not there yet."""
    if trial.diverged:
        return math.inf
    last = halving_step(trial.planned.config)
    rows = read_metrics(trial.planned.folder.path / METRICS)
    losses = {int(row["step"]): float(row["loss"]) for row in rows if row["split"] == SPLIT}
    until = [step for step in losses if step <= last]
    reached = until and (max(until) == last or trial.planned.folder.complete)
    return losses[max(until)] if reached else None


def better_half(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of a model that train to the end: the better half by their early losses, rounded up."""
    ranked = sorted(trials, key=lambda trial: (early_loss(trial), trial.planned.run))
    return ranked[: math.ceil(len(trials) / 2)]
