"""The second stage: each model with its selected settings and other seeds, scored on the test split."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from experiments.compare.select import Selection
from experiments.compare.trials import with_settings
from experiments.planning.plan import Plan, plan
from experiments.runs.folders import RunFailed
from experiments.sweeps.sweep import train_all


def confirmations(selection: Selection) -> list[Plan]:
    """The runs that confirm a model: its selected settings with the seeds after the selection's.

    None of them took part in the selection, so their scores are not the lucky ones that were selected.
    """
    config = with_settings(selection.config, selection.best.settings)
    seeds = range(config.seed + 1, config.seed + 1 + config.compare.seeds)
    return [plan(dataclasses.replace(config, seed=seed)) for seed in seeds]


def confirm(confirmed: Sequence[Sequence[Plan]]) -> None:
    """Train and score the runs that confirm. Raises RunFailed where some failed; the others are complete then."""
    plans = [planned for group in confirmed for planned in group]
    train_all(plans)
    left = sum(not planned.done for planned in plans)
    if left:
        raise RunFailed(f"{left} of {len(plans)} confirming runs are not complete; the same command goes on")
