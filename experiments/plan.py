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
from experiments.checks import check_config
from experiments.costs import resolve_steps
from experiments.data.cache import content_hash
from experiments.optim import resolve_lr_min
from experiments.presets import label
from experiments.runs import RunFolder
from experiments.schema import Config
from zoo.errors import UserError
from zoo.matching import match
from zoo.model import letters_of
from zoo.options import deciding

IDENTITY_FORMAT = 1
DATA_KEYS = ("pack", "seq_len", "batch_size")
TRAINER_KEYS = ("max_steps", "accumulate", "precision", "val_every", "val_tokens", "patience")
EVALUATE_KEYS = ("stride", "splits", "windows")


def identify(config: Config, letters: str, content: str) -> dict[str, Any]:
    """Everything that can change a run's result; no paths, devices, loggers, threads, recomputing, logging intervals.

    letters: a mixer's letter a layer; content: hash of the text as the model sees it (`fingerprint_data`). Options
    that were added later are left out where their values keep the behaviour from before (zoo.options).
    """
    return {
        "format": IDENTITY_FORMAT,
        "model": zoo.config.used(config.model, letters),
        "data": {"content": content, **deciding(config.data, DATA_KEYS)},
        "recipe": {**deciding(config.trainer, TRAINER_KEYS), **deciding(config.optim)},
        "evaluate": deciding(config.evaluate, EVALUATE_KEYS),
        "seed": config.seed,
    }


def run_name(identity: dict[str, Any]) -> str:
    """The name of a run's folder: 12 hexadecimal digits of its identity's hash."""
    return content_hash(identity, 12)


def fingerprint_data(config: data.DataConfig) -> str:
    """`data.fingerprint` of a configuration, computed once a process."""
    return _fingerprint(json.dumps(dataclasses.asdict(config), sort_keys=True))


@functools.lru_cache(maxsize=64)
def _fingerprint(config_json: str) -> str:
    return data.fingerprint(data.DataConfig(**json.loads(config_json)))


def recorded_config(values: dict[str, Any]) -> Config:
    """The configuration that a run's config.yaml recorded, as far as it decides the identity; the rest is at defaults.

    So `identify(c, letters_of(c.model), content)` for c = recorded_config(values) is the run's identity, also where the
    run is older than some options. Raises UserError for an option that decided it and no longer exists.
    """
    parts = {"data": DATA_KEYS, "trainer": TRAINER_KEYS, "evaluate": EVALUATE_KEYS}
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
    def title(self) -> str:
        """The name of the run in messages: its model's label and its seed."""
        return f"{label(self.config, self.letters)} seed {self.config.seed}"

    def yaml(self) -> str:
        """The whole resolved configuration."""
        return OmegaConf.to_yaml(OmegaConf.structured(self.config))


def plan(config: Config) -> Plan:
    """The run of a configuration, checked, with its folder found. Raises UserError; writes nothing."""
    config = dataclasses.replace(config, optim=resolve_lr_min(config.optim))
    config = resolve_steps(config)
    check_config(config)
    config = apply_match(config)
    letters = letters_of(config.model)
    identity = identify(config, letters, fingerprint_data(config.data))
    folder = RunFolder(Path(config.results) / config.name / run_name(identity))
    return Plan(config, letters, identity, folder)


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
