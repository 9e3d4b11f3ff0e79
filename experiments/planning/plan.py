"""From a configuration to a planned run: checked before any work, with its identity and its folder."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import zoo.config
from experiments import data
from experiments.configuration.learning_rates import at_rate, resolve_lr_min
from experiments.configuration.presets import label
from experiments.configuration.schema import Config, OptimConfig
from experiments.configuration.studied_rates import studied_rate
from experiments.costs.model_costs import resolve_steps
from experiments.data.cache import content_hash
from experiments.planning.checks import check_config
from experiments.runs.folders import SUMMARY, RunFolder
from zoo.errors import UserError
from zoo.matching import match
from zoo.model import letters_of
from zoo.options import deciding

IDENTITY_FORMAT = 2
DATA_KEYS = ("pack", "seq_len", "batch_size")
TRAINER_KEYS = ("max_steps", "accumulate", "precision", "val_every", "val_tokens", "patience")
EVALUATE_KEYS = ("stride", "windows")


def identify(config: Config, letters: str, content: str) -> dict[str, Any]:
    """Everything that can change a run's weights and how it is scored; not which splits are: more can be scored later.

    No paths, devices, loggers, threads, recomputing, logging intervals.

    letters: a mixer's letter a layer; content: hash of the text as the model sees it (`fingerprint_data`). Options
    that were added later are left out where their values keep the behaviour from before (zoo.options).
    """
    return {
        "format": IDENTITY_FORMAT,
        "model": zoo.config.used(config.model, letters),
        "data": {"content": content, **deciding(config.data, DATA_KEYS)},
        "recipe": {**deciding(config.trainer, TRAINER_KEYS), **_deciding_rates(config.optim)},
        "evaluate": deciding(config.evaluate, EVALUATE_KEYS),
        "seed": config.seed,
    }


def _deciding_rates(optim: OptimConfig) -> dict[str, Any]:
    """The optimiser's options; not where the rate comes from, which changes nothing."""
    return deciding(dataclasses.replace(optim, lr_study=None))


def as_format_1(identity: dict[str, Any], splits: list[str]) -> dict[str, Any]:
    """The identity as runs of before recorded it, in whose names the splits to score (evaluate.splits) still were."""
    return {**identity, "format": 1, "evaluate": {**identity["evaluate"], "splits": list(splits)}}


def run_name(identity: dict[str, Any]) -> str:
    """The name of a run's folder: 12 hexadecimal digits of its identity's hash."""
    return content_hash(identity, 12)


def fingerprint_data(config: data.DataConfig) -> str:
    """`data.fingerprint` of a configuration, computed once a process."""
    return _fingerprint(json.dumps(dataclasses.asdict(config), sort_keys=True))


@functools.lru_cache(maxsize=64)
def _fingerprint(config_json: str) -> str:
    return data.fingerprint(zoo.config.from_dict(data.DataConfig, json.loads(config_json), "data"))


def recorded_config(values: dict[str, Any]) -> Config:
    """The configuration that a run's config.yaml recorded, as far as it decides the identity; the rest is at defaults.

    So `identify(c, letters_of(c.model), content)` for c = recorded_config(values) is the run's identity, also where the
    run is older than some options. Raises UserError for an option that decided it and no longer exists.
    """
    parts = {"data": DATA_KEYS, "trainer": TRAINER_KEYS, "evaluate": (*EVALUATE_KEYS, "splits")}
    kept = {
        name: {key: values[name][key] for key in keys if key in values[name]} for name, keys in parts.items()
    }
    whole = {name: values[name] for name in ("model", "optim", "seed")}
    return zoo.config.from_dict(Config, {**whole, **kept}, "config", recorded=True)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run that has been checked: its configuration, its layers, its identity and its folder."""

    config: Config
    letters: str
    identity: dict[str, Any]
    folder: RunFolder

    @property
    def run(self) -> str:
        """The name of the run's folder."""
        return self.folder.path.name

    @property
    def unscored(self) -> list[str]:
        """The splits of evaluate.splits that a complete run has no score of. Raises UserError for a damaged summary."""
        try:
            scored = set(self.folder.summary()["metrics"])
        except (LookupError, TypeError) as error:
            raise self.folder.damaged(SUMMARY, error) from error
        return [name for name in self.config.evaluate.splits if name not in scored]

    @property
    def done(self) -> bool:
        """Whether nothing is left to do: the run is complete, with a score of every split of evaluate.splits."""
        return self.folder.complete and not self.unscored

    @property
    def title(self) -> str:
        """The name of the run in messages: its model's label and its seed."""
        return f"{label(self.config, self.letters)} seed {self.config.seed}"

    def yaml(self) -> str:
        """The whole resolved configuration."""
        return OmegaConf.to_yaml(OmegaConf.structured(self.config))


def plan(config: Config) -> Plan:
    """The run of a configuration, checked, with its folder found. Raises UserError; writes nothing."""
    data_node = data.resolve_task(config.data)
    config = dataclasses.replace(config, data=data_node, optim=resolve_lr_min(config.optim))
    config = resolve_steps(config)
    check_config(config)
    config = apply_match(config)
    letters = letters_of(config.model)
    config = dataclasses.replace(config, optim=_at_studied_rate(config, letters))
    identity, folder = _place(config, identify(config, letters, fingerprint_data(config.data)))
    return Plan(config, letters, identity, folder)


def _at_studied_rate(config: Config, letters: str) -> OptimConfig:
    """The recipe at the rate that optim.lr_study selected for the model; as it is where it names none."""
    optim, study = config.optim, config.optim.lr_study
    if study is None:
        return optim
    rate = studied_rate(study, label(config, letters))
    if optim.lr not in (OptimConfig.lr, rate):
        raise UserError(
            f"optim.lr={optim.lr:g} and optim.lr_study={study} both set the learning rate; leave optim.lr out, or give "
            "optim.lr_study=null with it"
        )
    return dataclasses.replace(at_rate(optim, rate), lr_study=study)


def _place(config: Config, identity: dict[str, Any]) -> tuple[dict[str, Any], RunFolder]:
    """The folder of a run and the identity that names it: that of format 1 where only such a folder is there."""
    place, earlier = Path(config.results) / config.name, as_format_1(identity, config.evaluate.splits)
    if (place / run_name(earlier)).is_dir() and not (place / run_name(identity)).is_dir():
        identity = earlier
    return identity, RunFolder(place / run_name(identity))


def apply_match(config: Config) -> Config:
    """The configuration with the widths that `match` asks for. Raises UserError where there are none."""
    length = config.match_length
    if length is not None and (length < 1 or config.match in (None, "params")):
        raise UserError(
            f"match_length={length} is a number of tokens, at least 1, beside match=flops or match=state; leave it out"
        )
    if config.match is None:
        return config
    model = match(config.model, config.match, seq_len=config.data.seq_len, length=length)
    return dataclasses.replace(config, model=model)
