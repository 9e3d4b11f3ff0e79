"""The first stage: one run for every setting of every model, more of the two best, and the best by validation loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from statistics import fmean

from experiments.compare import halving, rates, seeds
from experiments.compare.trials import RATE, Trial, combinations, make_trial
from experiments.configuration.schema import Config
from experiments.planning.plan import Plan
from experiments.runs.folders import RunFailed
from experiments.sweeps.sweep import train_all
from zoo.errors import UserError


@dataclasses.dataclass
class Selection:
    """The trials of one model, on one task, so far: one a setting, and repeats of the best with further seeds."""

    config: Config
    trials: list[Trial]
    repeats: list[Trial] = dataclasses.field(default_factory=list)

    def runs(self, trial: Trial) -> list[Trial]:
        """A trial and its repeats."""
        return [trial, *(repeat for repeat in self.repeats if repeat.settings == trial.settings)]

    def loss(self, trial: Trial) -> float:
        """The mean validation loss of a trial and its repeats; infinite where one of them has no finite one."""
        return fmean(run.loss for run in self.runs(trial))

    @property
    def ranked(self) -> list[Trial]:
        """The trials from the lowest mean validation loss up, of equal ones from the lowest rate up."""
        return sorted(self.trials, key=lambda trial: (self.loss(trial), trial.settings[RATE]))

    @property
    def best(self) -> Trial:
        """The first of the ranked trials; once the selection has ended, one with all its repeats."""
        return self.ranked[0]

    @property
    def rates(self) -> list[float]:
        """The learning rates tried, ascending."""
        return sorted({trial.settings[RATE] for trial in self.trials})

    @property
    def edge(self) -> str:
        """The end of the rates tried that the best is at, "lowest" or "highest", where a better one may lie beyond."""
        return rates.edge(self.best.settings[RATE], self.rates)


def start(configs: Sequence[Config]) -> list[Selection]:
    """The trials of the grid for every model; nothing is trained.

    Everything that may be trained later is checked too. Raises UserError.
    """
    for config in configs:
        _check(config)
    found = []
    for place, config in enumerate(configs):
        # First, so that a mistake in the grid is not said to come from the rates that it may grow to.
        found.append(Selection(config, _trials(place, config, config.compare.rates)))
        for rate in rates.farthest(config.compare.rates, config.compare.extend):
            _try_reach(place, config, rate)
    return found


def select(selections: Sequence[Selection], record: Callable[[], None]) -> None:
    """Train the trials, and more of them where the best rate is at an end of those tried; fills in the selections.

    Where a grid does not grow, the two best trials are repeated with the further seeds of the selection. Their means
    may leave another trial among the two best, or the best at an end: it goes on until neither is so.

    record: called after every round. Raises RunFailed for runs that failed otherwise than by diverging, and UserError
    where every run of a model diverged, or one of every setting that was repeated.
    """
    going = True
    while going:
        _train_round(selections)
        record()
        # Of all models before any is asked about: the runs of a round are trained together.
        more = [_extend(place, selection) for place, selection in enumerate(selections)]
        going = any(more)
    for selection in selections:
        if not math.isfinite(selection.loss(selection.best)):
            what = "a run of every setting" if selection.repeats else "every run"
            raise UserError(
                f"{what} of {selection.best.planned.title} diverged at optim.lr={selection.rates}; "
                "lower compare.rates or raise optim.warmup_steps"
            )


def _train_round(selections: Sequence[Selection]) -> None:
    """Train the trials of all models, with compare.halving only the better half of each model's to the end."""
    halved = [trial for selection in selections if _halves(selection) for trial in selection.trials]
    _train([halving.first_part(trial) for trial in halved if halving.early_loss(trial) is None])
    _require([halving.early_loss(trial) is not None for trial in halved])
    trials = [trial for selection in selections for trial in [*_to_the_end(selection), *selection.repeats]]
    _train([trial.planned for trial in trials if not _known(trial)])
    _require([_known(trial) for trial in trials])


def _halves(selection: Selection) -> bool:
    return selection.config.compare.halving


def _to_the_end(selection: Selection) -> list[Trial]:
    return halving.better_half(selection.trials) if _halves(selection) else selection.trials


def _train(plans: list[Plan]) -> None:
    if plans:
        train_all(plans)


def _require(ended: list[bool]) -> None:
    """Raise RunFailed where runs did not come to the end of their part; to diverge is an outcome."""
    lost = len(ended) - sum(ended)
    if lost:
        raise RunFailed(f"{lost} of {len(ended)} selection runs failed; the same command tries them again")


def _known(trial: Trial) -> bool:
    return trial.diverged or trial.planned.done


def _extend(place: int, selection: Selection) -> bool:
    """Add what the trials so far call for: a rate beyond an end, else repeats; False where that is nothing."""
    grown = _grown(place, selection)
    repeats = [] if grown else _lacking(selection)
    selection.trials += grown
    selection.repeats += repeats
    return bool(grown or repeats)


def _lacking(selection: Selection) -> list[Trial]:
    """The repeats that the two best trials still lack; none of a trial that diverged or was pruned."""
    return [
        repeat
        for trial in selection.ranked[: seeds.CONTENDERS]
        if math.isfinite(selection.loss(trial)) and len(selection.runs(trial)) == 1
        for repeat in seeds.repeats(selection.config, trial)
    ]


def _grown(place: int, selection: Selection) -> list[Trial]:
    """The trials one rate beyond the end that the best is at; none where that end may not grow any more."""
    compare, tried = selection.config.compare, selection.rates
    lowest, highest = rates.farthest(compare.rates, compare.extend)
    if not selection.edge:
        return []
    rate = rates.beyond(tried, selection.edge)
    return _trials(place, selection.config, [rate]) if lowest <= rate <= highest else []


def _trials(place: int, config: Config, tried: Sequence[float]) -> list[Trial]:
    return [
        make_trial(place, config, {RATE: rate, **settings})
        for rate in tried
        for settings in combinations(config.compare.grid)
    ]


def _try_reach(place: int, config: Config, rate: float) -> None:
    try:
        _trials(place, config, [rate])
    except UserError as error:
        raise UserError(
            f"compare.extend={config.compare.extend} may lead to optim.lr={rate:g}: {error}; change compare.rates or "
            "compare.extend"
        ) from error


def _check(config: Config) -> None:
    compare = config.compare
    for key, least in (("extend", 0), ("seeds", 1), ("selection_seeds", 1)):
        value = getattr(compare, key)
        if value < least:
            raise UserError(f"compare.{key}={value} must be at least {least}")
    seeds.check(config)
    rates.check(compare.rates)
    if compare.halving:
        halving.halving_step(config)
