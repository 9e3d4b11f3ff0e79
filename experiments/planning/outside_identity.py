"""Settings that are no part of a run's identity, where a command would lose them in silence.

Cells of a sweep that differ in nothing else are one run, and a complete run stays as it was made, whatever is asked.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from experiments.configuration.schema import Config, TrainerConfig
from experiments.planning.plan import EVALUATE_KEYS, TRAINER_KEYS, Plan
from experiments.runs.folders import CONFIG
from zoo.errors import UserError

_NAMING = (
    *("model", "data", "optim", "seed", "match", "match_length", "trainer.tokens_per_parameter"),
    *(f"trainer.{key}" for key in TRAINER_KEYS),
    *(f"evaluate.{key}" for key in EVALUATE_KEYS),
)
_BUT = ("model.backend", "data.cache_dir")
_OF_THE_COMMAND = ("progress", "max_minutes", "pause_at", "checkpoint_every")
"""Options of the trainer that leave no trace in a complete run."""


def leaves(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in nested dicts."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _can_name(key: str) -> bool:
    """Return whether a key can be part of a run's identity (of some run: options of other blocks than its own are)."""
    return key not in _BUT and any(f"{key}.".startswith(f"{part}.") for part in _NAMING)


def refuse_lost_values(plans: Iterable[Plan]) -> None:
    """Raise UserError for cells that are one run and ask for different settings: it can have one of them."""
    first: dict[Any, dict[str, Any]] = {}
    lost: dict[str, None] = {}
    for planned in plans:
        values = dict(leaves(dataclasses.asdict(planned.config)))
        before = first.setdefault(planned.folder.path, values)
        differ = (key for key, value in values.items() if value != before.get(key))
        lost.update(dict.fromkeys(key for key in differ if not _can_name(key)))
    if lost:
        raise UserError(
            f"runs are not told apart by {', '.join(lost)}, so that cells which differ in nothing else are one run, "
            "trained once; give one value, or a command for each value, with a name= of its own"
        )


def tell_other_settings(plans: Iterable[Plan]) -> None:
    """Print a notice where complete runs were made with other settings than asked for, on the standard error."""
    found: dict[str, list[Plan]] = {}
    for planned in plans:
        if planned.folder.complete and (differ := _differences(planned)):
            found.setdefault(", ".join(differ), []).append(planned)
    for differ, alike in found.items():
        others = f" and {len(alike) - 1} more" if alike[1:] else ""
        print(
            f"notice: {alike[0].folder.path}{others} is complete and stays as it was trained, with {differ}; runs are "
            "not told apart by such settings: to train with those asked for give another name=, or remove the folder",
            file=sys.stderr,
            flush=True,
        )


def _differences(planned: Plan) -> list[str]:
    """`trainer.compile=false (asked: true)` for every such setting of a complete run; none where it is not recorded."""
    try:
        text = (planned.folder.path / CONFIG).read_text(encoding="utf-8")
        recorded = dict(leaves(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))))
    except (OSError, ValueError, yaml.YAMLError, AttributeError, RecursionError):
        return []  # a damaged file is complained of where the run is read
    machine = planned.folder.summary().get("machine")
    if isinstance(machine, dict):
        recorded["device"] = "cuda" if machine.get("gpu") else "cpu"
    asked = {key: value for key, value in leaves(dataclasses.asdict(planned.config)) if value != "auto"}
    return [
        f"{key}={_written(recorded[key])} (asked: {_written(asked[key])})"
        for key in _made_with(planned.config)
        if key in asked and key in recorded and asked[key] != recorded[key]
    ]


def _made_with(config: Config) -> list[str]:
    """Keys outside the identity that a complete run shows: in its numbers' last digits, speeds or files."""
    trainer = [f.name for f in dataclasses.fields(TrainerConfig) if f.name not in _OF_THE_COMMAND]
    probe = (
        ["at"] if config.trainer.probe_every is None else [f.name for f in dataclasses.fields(config.probe)]
    )
    keys = ["device", "model.backend", *(f"trainer.{x}" for x in trainer), *(f"probe.{x}" for x in probe)]
    return [key for key in keys if not _can_name(key)]


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
