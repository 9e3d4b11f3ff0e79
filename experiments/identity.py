"""The identity of a run: everything that can change its result, as plain values whose hash names its folder."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import zoo.config
from experiments import data
from experiments.hashing import content_hash
from experiments.schema import Config
from zoo.options import deciding

FORMAT = 1
DATA = ("pack", "seq_len", "batch_size")
TRAINER = ("max_steps", "accumulate", "precision", "val_every", "val_tokens", "patience")
EVALUATE = ("stride", "splits")


def identify(config: Config, letters: str, content: str) -> dict[str, Any]:
    """Everything that can change a run's result; no paths, devices, loggers, threads, recomputing, logging intervals.

    letters: a mixer's letter a layer; content: hash of the text as the model sees it (`fingerprint_data`). Options
    that were added later are left out where they do as before they existed (zoo.options).
    """
    return {
        "format": FORMAT,
        "model": zoo.config.used(config.model, letters),
        "data": {"content": content, **deciding(config.data, DATA)},
        "recipe": {**deciding(config.trainer, TRAINER), **deciding(config.optim)},
        "evaluate": deciding(config.evaluate, EVALUATE),
        "seed": config.seed,
    }


def run_name(identity: dict[str, Any]) -> str:
    """The name of a run's folder: 12 hexadecimal digits of its identity's hash."""
    return content_hash(identity, 12)


def fingerprint_data(config: data.DataConfig) -> str:
    """The hash of what a model sees of a text, read once a process and configuration (data.fingerprint)."""
    return _fingerprint(json.dumps(dataclasses.asdict(config), sort_keys=True))


@functools.lru_cache(maxsize=64)
def _fingerprint(config_json: str) -> str:
    return data.fingerprint(data.DataConfig(**json.loads(config_json)))


def recorded(values: dict[str, Any]) -> Config:
    """The configuration that a run's config.yaml recorded, as far as it decides the identity; the rest is at defaults.

    So `identify(recorded(values), letters_of(recorded(values).model), content)` is the run's identity, also where the
    run is older than some options. Raises UserError for an option that decided it and exists no more.
    """
    parts = {"data": DATA, "trainer": TRAINER, "evaluate": EVALUATE}
    kept = {
        name: {key: values[name][key] for key in keys if key in values[name]} for name, keys in parts.items()
    }
    whole = {name: values[name] for name in ("model", "optim", "seed")}
    return zoo.config.from_dict(Config, {**whole, **kept}, "config", recorded=True)
