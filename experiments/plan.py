"""From a configuration to a planned run: everything that can be wrong is found here, before any work."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.checks import check_config
from experiments.identity import fingerprint_data, identify, run_name
from experiments.labels import label
from experiments.runs import RunFolder
from experiments.schema import Config
from zoo.errors import unknown
from zoo.matching import match_parameters
from zoo.model import letters_of

MATCHES = ("params",)


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
    check_config(config)
    config = apply_match(config)
    letters = letters_of(config.model)
    identity = identify(config, letters, fingerprint_data(config.data))
    folder = RunFolder(Path(config.results) / config.name / run_name(identity))
    return Plan(config, letters, identity, folder)


def apply_match(config: Config) -> Config:
    """The configuration with what `match` asks for solved. Raises UserError where it has no solution."""
    if config.match is None:
        return config
    if config.match not in MATCHES:
        raise unknown("match", config.match, MATCHES)
    return dataclasses.replace(config, model=match_parameters(config.model, config.data.seq_len))
