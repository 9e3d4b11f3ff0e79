"""Further seeds for the two best settings of a model: one seed takes the wrong one where they are near each other."""

from __future__ import annotations

import dataclasses

from experiments.compare.trials import Trial, make_trial
from experiments.configuration.schema import Config
from experiments.planning.checks import check_seed
from zoo.errors import UserError

CONTENDERS = 2
"""So many settings of a model are trained with all seeds of the selection."""

APART = 1000
"""Seeds of the selection are so far apart, and those that confirm are the next ones after the first."""


def further_seeds(config: Config) -> list[int]:
    """The seeds that select beside the first: seed + 1000·k, k from 1 to compare.selection_seeds − 1."""
    return [config.seed + APART * k for k in range(1, config.compare.selection_seeds)]


def check(config: Config) -> None:
    """Refuse seeds that would both select and confirm, or are too large. Raises UserError."""
    seeds = further_seeds(config)
    if seeds and config.compare.seeds >= APART:
        raise UserError(
            f"compare.seeds={config.compare.seeds} would confirm with seed {seeds[0]}, which selects too; with "
            f"compare.selection_seeds={config.compare.selection_seeds} give less than {APART}"
        )
    for seed in seeds:
        check_seed(seed)


def repeats(config: Config, trial: Trial) -> list[Trial]:
    """The trial's settings with each further seed, to be trained as whole runs."""
    return [
        make_trial(trial.model, dataclasses.replace(config, seed=seed), trial.settings)
        for seed in further_seeds(config)
    ]
