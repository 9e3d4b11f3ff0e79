"""A selection run: a model with settings to be judged by its loss on the validation split."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.configuration.explain import known_keys
from experiments.configuration.hydra_settings import MOST_CELLS, unknown_key, values_of
from experiments.configuration.schema import Config
from experiments.planning.plan import Plan, at_rate, plan
from experiments.training.lightning_modules import NonFinite
from zoo.config import check_names
from zoo.errors import UserError

Settings = Mapping[str, Any]  # key of the configuration -> value
RATE = "optim.lr"
GRID = "compare.grid"  # where settings are given, unless said otherwise
SPLIT = "validation"
FIXED = ("seed", "job", "name", "results", "data", "evaluate", "compare")


@dataclasses.dataclass(frozen=True)
class Trial:
    """A planned run of a model with some settings; model: its place in the comparison."""

    model: int
    settings: Settings
    planned: Plan

    @property
    def diverged(self) -> bool:
        """Return whether its loss or gradient was not finite: an outcome, which repeating it would not change."""
        return self.planned.folder.failed and self.planned.folder.failure().get("kind") == NonFinite.__name__

    @property
    def loss(self) -> float:
        """Its loss on the whole validation split; infinite where it diverged or was not trained to the end.

        Raises UserError for a summary without it.
        """
        if not self.planned.folder.complete:
            return math.inf
        try:
            return float(self.planned.folder.summary()["metrics"][SPLIT]["loss"])
        except (LookupError, TypeError, ValueError) as error:
            raise self.planned.folder.damaged("summary.json", error) from error


def make_trial(model: int, config: Config, settings: Settings) -> Trial:
    """The trial of a model: the run of its configuration with these settings, scored on the validation split alone.

    On all of it: `evaluate.windows` limits what the confirming runs are scored on, not what settings are chosen by.

    Its folder is one of the experiment NAME_selection. Raises UserError where that configuration cannot work.
    """
    chosen = with_settings(config, settings)
    chosen.name = f"{config.name}_selection"
    chosen.evaluate.splits, chosen.evaluate.windows = [SPLIT], None
    return Trial(model, settings, plan(chosen))


def with_settings(config: Config, settings: Settings, given_in: str = GRID) -> Config:
    """A copy of a configuration with other values.

    Raises UserError, which names the key that they were given in, for a key or value that it cannot have.
    """
    others = {key: value for key, value in settings.items() if key != RATE}
    changed = _with_others(config, others, given_in) if others else copy.deepcopy(config)
    if RATE in settings:
        changed.optim = at_rate(changed.optim, settings[RATE])
    return changed


def _with_others(config: Config, settings: Settings, given_in: str) -> Config:
    node = OmegaConf.structured(config)
    try:
        for key, value in settings.items():
            OmegaConf.update(node, key, value)
        made: Config = OmegaConf.to_object(node)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        if key not in (keys := known_keys()):
            raise UserError(f"{given_in}: {unknown_key(key, keys)}") from error
        line = str(error).splitlines()[0]
        raise UserError(f"{given_in}: {key}={value} cannot be set ({line})") from error
    check_names(made.model)
    return made


def combinations(grid: Sequence[str], given_in: str = GRID) -> Iterator[Settings]:
    """Yield every combination of a grid's values, written as sweeps "key=value,value"; without a grid, one empty one.

    Raises UserError, which names the key `given_in`, for anything but a sweep and for keys that cannot be selected.
    """
    swept = [_read_sweep(text, given_in) for text in grid]
    values = dict(swept)
    if len(values) < len(swept):
        raise UserError(f"{given_in} has a key twice: {', '.join(grid)}; give all its values at once")
    if math.prod(map(len, values.values())) > MOST_CELLS:
        raise UserError(
            f"{given_in}: {', '.join(grid)} has more than {MOST_CELLS:,} combinations; give fewer values"
        )
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def _read_sweep(text: str, given_in: str) -> tuple[str, list[Any]]:
    try:
        sweep = OverridesParser.create().parse_override(text)
        values = values_of(sweep) if sweep.is_sweep_override() else [sweep.value()]
    except HydraException as error:
        raise UserError(
            f"{given_in}: cannot read {text!r}; write it as a sweep, such as optim.weight_decay=0.01,0.1"
        ) from error
    key = sweep.key_or_group
    if key.partition(".")[0] in FIXED or key == RATE:
        raise UserError(f"{given_in} has {key}, which job=compare cannot select; leave it out")
    return key, values
