"""Learning rates that follow from others: the lowest from its ratio, and a recipe at another rate."""

from __future__ import annotations

import dataclasses

from experiments.configuration.schema import OptimConfig
from zoo.errors import UserError


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
