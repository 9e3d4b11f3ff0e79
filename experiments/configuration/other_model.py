"""Keys of a model that a command gives beside run=, where the run's model is another one."""

from __future__ import annotations

import operator
import sys
from typing import Any

from experiments.configuration.schema import Config
from zoo.config import ModelConfig, from_dict
from zoo.io import read_card

BACKEND = "model.backend"
"""The one key of a model that a command may give beside run=: it changes nothing of what is computed."""
_WHOLE = ("pattern", "residual.name", "channel.name")


def given_backend(config: Config) -> str | None:
    """The backend that the command gives; None where it leaves a run its own."""
    return config.model.backend if BACKEND in config.given else None


def tell_other_model(config: Config) -> None:
    """Print a notice where the command gives keys of `model` and the model of run= has other values: it keeps its own.

    No mistake: the words that trained a run may stand before job=evaluate, too. run= was loaded before, so that there
    is a card to read.
    """
    given = [key.removeprefix("model.") for key in config.given - {BACKEND} if key.startswith("model.")]
    compared = [*given, *(_WHOLE if "model" in config.given else ())]
    if not compared:
        return
    model = from_dict(ModelConfig, read_card(config.run)["model"], recorded=True)
    differ = {key: _value(model, key) for key in compared}
    differ = {key: own for key, own in differ.items() if own != _value(config.model, key)}
    if differ:
        own = ", ".join(f"model.{key}={value}" for key, value in sorted(differ.items()))
        print(
            f"notice: {config.run} stays as it was trained, with {own}; job={config.job} takes no model from the "
            "command",
            file=sys.stderr,
            flush=True,
        )


def _value(model: ModelConfig, key: str) -> Any:
    """The value at a dotted key; None where a model has no such node."""
    try:
        return operator.attrgetter(key)(model)
    except AttributeError:
        return None
