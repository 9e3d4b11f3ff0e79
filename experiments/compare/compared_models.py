"""Models of a comparison that a sweep's grid cannot name: each with options of its own, `compare.models`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from experiments.compare.trials import combinations, with_settings
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config
from zoo.errors import unknown


def named_models(config: Config) -> list[Config]:
    """A configuration for every model of compare.models, in order; the one given, where none is named.

    An entry is a preset and keys below `model`, of which one may have several values, a model each:
    "kda_pure mixers.kda.head_width=4,8". Raises UserError for a preset that does not exist, and for a key or value that
    a model cannot have.
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
    for settings in combinations([f"model.{option}" for option in options], given_in):
        yield with_settings(chosen, settings, given_in)
