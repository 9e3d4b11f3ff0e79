"""The two stages of job=compare: settings are selected for every model, then confirmed with other seeds.

The first stage trains one run for every setting of every model, more seeds of the two best, and takes the best by
validation loss. The second trains the selected settings with other seeds and scores them on the test split.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from experiments import engines
from experiments.compare.trials import RATE, SPLIT, Trial, combinations, make_trial, with_settings
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config
from experiments.planning.plan import Plan, plan
from experiments.runs import METRICS, RunFailed, read_metrics
from experiments.sweep import train_all
from zoo.errors import UserError, unknown
from zoo.options import check_limits

# Models that a sweep's grid cannot name: each with options of its own, `compare.models`.


def named_models(config: Config) -> list[Config]:
    """A configuration for every model of compare.models, in order; the one given, where none is named.

    An entry is a preset and keys of `model`, whole or without that word, of which one may have several values, a model
    each: "kda_pure model.mixers.kda.head_width=4,8". Raises UserError for a preset that does not exist, and for a key
    or value that a model cannot have.
    """
    entries = config.compare.models
    return [made for entry in entries for made in _models(config, entry)] if entries else [config]


def _models(config: Config, entry: str) -> Iterator[Config]:
    preset, *options = entry.split() or [""]
    presets = architectures(config.model)
    if preset not in presets:
        raise unknown("preset in compare.models", preset, presets)
    chosen = dataclasses.replace(config, model=presets[preset])
    given_in = f"compare.models: {entry!r}"
    for settings in combinations([f"model.{option.removeprefix('model.')}" for option in options], given_in):
        yield with_settings(chosen, settings, given_in)


# Successive halving: all trials of a model train for a part of their steps, only the better half to the end.
#
# After Jamieson and Talwalkar (2016), with one halving: early in a fixed schedule a rate's loss tells only roughly
# where it will end. Half of the trials is a cut wide enough for that (docs/comparing.md says how often).

PART = 4
"""Trials are halved after max_steps / PART steps, at the last validation until then."""


def halving_step(config: Config) -> int:
    """The step at which trials are compared. Raises UserError where nothing is validated until then."""
    trainer = config.trainer
    step = trainer.max_steps // PART // trainer.val_every * trainer.val_every
    if step < 1:
        raise UserError(
            f"compare.halving needs a validation within the first {trainer.max_steps // PART} steps (a quarter of "
            f"trainer.max_steps); lower trainer.val_every={trainer.val_every}"
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


# The grid of learning rates: it grows where the best rate is at an end.

LOWEST, HIGHEST = "lowest", "highest"


def check_rates(rates: Sequence[float]) -> None:
    """Refuse a grid that nothing can be selected from. Raises UserError."""
    if len(set(rates)) < 2 or len(set(rates)) < len(rates):
        raise UserError(f"compare.rates={list(rates)} must have two or more different rates")


def beyond(rates: Sequence[float], end: str) -> float:
    """The next rate beyond an end (LOWEST or HIGHEST), by the ratio of the last two there; two significant digits."""
    ordered = sorted(rates, reverse=end == LOWEST)
    return float(f"{ordered[-1] * ordered[-1] / ordered[-2]:.2g}")


def edge_of(rate: float, rates: Sequence[float]) -> str:
    """The end of the rates tried that a rate is at: LOWEST, HIGHEST or ""."""
    return LOWEST if rate <= min(rates) else HIGHEST if rate >= max(rates) else ""


def farthest(rates: Sequence[float], extend: int) -> tuple[float, float]:
    """The lowest and the highest rate that a grid may grow to."""
    grown = list(rates)
    for end in (LOWEST, HIGHEST) * extend:
        grown.append(beyond(grown, end))
    return min(grown), max(grown)


# Further seeds for the two best settings: one seed picks the wrong one where they are close.

CONTENDERS = 2
"""So many settings of a model are trained with all seeds of the selection."""

APART = 1000
"""Seeds of the selection are so far apart, and those that confirm are the next ones after the first."""


def further_seeds(config: Config) -> list[int]:
    """The seeds that select beside the first: seed + 1000·k, k from 1 to compare.selection_seeds − 1."""
    return [config.seed + APART * k for k in range(1, config.compare.selection_seeds)]


def check_seeds(config: Config) -> None:
    """Refuse seeds that would both select and confirm, or are too large. Raises UserError."""
    seeds = further_seeds(config)
    if seeds and config.compare.seeds >= APART:
        raise UserError(
            f"compare.seeds={config.compare.seeds} would confirm with seed {seeds[0]}, which also selects; with "
            f"compare.selection_seeds={config.compare.selection_seeds} give fewer than {APART}"
        )
    for seed in seeds:
        check_limits(dataclasses.replace(config, seed=seed))


def repeats(config: Config, trial: Trial) -> list[Trial]:
    """The trial's settings with each further seed, to be trained as whole runs."""
    return [
        make_trial(trial.model, dataclasses.replace(config, seed=seed), trial.settings)
        for seed in further_seeds(config)
    ]


# The first stage.


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
        return edge_of(self.best.settings[RATE], self.rates)


def start(configs: Sequence[Config]) -> list[Selection]:
    """The trials of the grid for every model; nothing is trained.

    Everything that may be trained later is checked too. Raises UserError.
    """
    for config in configs:
        _check(config)
    rates = []
    for place, config in enumerate(configs):
        # First, so that a mistake in the grid is not said to come from the rates that it may grow to.
        rates.append(Selection(config, _trials(place, config, config.compare.rates)))
        for rate in farthest(config.compare.rates, config.compare.extend):
            _try_reach(place, config, rate)
    return rates


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
    _train([first_part(trial) for trial in halved if early_loss(trial) is None])
    _require([early_loss(trial) is not None for trial in halved])
    trials = [trial for selection in selections for trial in [*_to_the_end(selection), *selection.repeats]]
    _train([trial.planned for trial in trials if not _known(trial)])
    _require([_known(trial) for trial in trials])


def _halves(selection: Selection) -> bool:
    return selection.config.compare.halving


def _to_the_end(selection: Selection) -> list[Trial]:
    return better_half(selection.trials) if _halves(selection) else selection.trials


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
        for trial in selection.ranked[:CONTENDERS]
        if math.isfinite(selection.loss(trial)) and len(selection.runs(trial)) == 1
        for repeat in repeats(selection.config, trial)
    ]


def _grown(place: int, selection: Selection) -> list[Trial]:
    """The trials one rate beyond the end that the best is at; none where that end may not grow any more."""
    compare, tried = selection.config.compare, selection.rates
    lowest, highest = farthest(compare.rates, compare.extend)
    if not selection.edge:
        return []
    rate = beyond(tried, selection.edge)
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
    engines.check(config)
    check_seeds(config)
    check_rates(compare.rates)
    if compare.halving:
        halving_step(config)


# The second stage.


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
        raise RunFailed(
            f"{left} of {len(plans)} confirming runs are not complete; the same command resumes them"
        )
