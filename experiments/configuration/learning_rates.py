"""Learning rates that follow from others: the lowest from its ratio, a recipe at another rate or at a study's.

A study of results/published has what job=compare selected for each of its models.
"""

from __future__ import annotations

import csv
import dataclasses
import functools

from experiments.configuration.compose import label
from experiments.configuration.schema import Config, OptimConfig
from experiments.system.paths import PUBLISHED, SELECTION
from zoo.errors import UserError, unknown


def resolve_lr_min(config: OptimConfig) -> OptimConfig:
    """The recipe with lr_min = lr_min_ratio·lr, to 12 digits, in the place of the ratio; without a ratio as it is.

    So 0.1 of 3e-3 is 3e-4, and the run has the name that it has with lr_min=3e-4. Raises UserError for a ratio outside
    of 0 to 1, and beside an lr_min that is not the default.
    """
    ratio = config.lr_min_ratio
    if ratio is None:
        return config
    if not 0 <= ratio <= 1:
        raise UserError(f"optim.lr_min_ratio={ratio} must be a share of optim.lr, from 0 to 1")
    if config.lr_min != OptimConfig.lr_min:
        raise UserError(
            f"optim.lr_min={config.lr_min:g} and optim.lr_min_ratio={ratio:g} both set the lowest rate; leave one of "
            f"them out, or, where an experiment sets lr_min, add optim.lr_min={OptimConfig.lr_min:g}, its default"
        )
    return dataclasses.replace(config, lr_min=float(f"{ratio * config.lr:.12g}"), lr_min_ratio=None)


def at_rate(config: OptimConfig, rate: float) -> OptimConfig:
    """The recipe with another lr; lr_min keeps its ratio to lr, so that schedules of all rates have one shape.

    A lr_min_ratio stays, and does the same. The rate is no study's any more.
    """
    lr_min = config.lr_min
    if config.lr_min_ratio is None:
        lr_min = float(f"{rate * config.lr_min / config.lr:.6g}")
    return dataclasses.replace(config, lr=rate, lr_min=lr_min, lr_study=None)


def at_studied_rate(config: Config, letters: str) -> OptimConfig:
    """The recipe at the rate that the study optim.lr_study selected for the model, whose layers have these letters.

    Raises UserError where the study has no such rate, and beside another optim.lr.
    """
    optim, study = config.optim, config.optim.lr_study
    rate = studied_rate(study, label(config, letters))
    if optim.lr not in (OptimConfig.lr, rate):
        raise UserError(
            f"optim.lr={optim.lr:g} and optim.lr_study={study} both set the learning rate; leave optim.lr out, or give "
            "optim.lr_study=null with it"
        )
    return dataclasses.replace(at_rate(optim, rate), lr_study=study)


def studied_rate(study: str, model: str) -> float:
    """The rate that a study of results/published selected for a model, named as the study names it.

    Raises UserError for a study that is not there or selected nothing, and for a model that it did not have.
    """
    rates = _rates(study)
    if model not in rates:
        raise UserError(
            f"optim.lr_study={study} has no learning rate for {model}, only for {', '.join(rates)}; give "
            "optim.lr_study=null and a rate, optim.lr=..."
        )
    return rates[model]


@functools.lru_cache
def _rates(study: str) -> dict[str, float]:
    """Model -> its rate; read once a process."""
    known = sorted(path.parent.name for path in PUBLISHED.glob(f"*/{SELECTION}"))
    if study not in known:
        raise unknown("optim.lr_study (a folder of results/published with a selection)", study, known)
    with (PUBLISHED / study / SELECTION).open(encoding="utf-8", newline="") as rows:
        return {row["model"]: float(row["lr"]) for row in csv.DictReader(rows) if row["chosen"] == "True"}
