"""What decides a run's result, whose hash names its folder; and notices of what does not decide it and is lost.

A run's folder holds what was asked for first. `tell_earlier` says where a block's file or other settings have changed
since, `refuse_lost_values` where one sweep asks for both.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import data
from experiments.configuration.schema import Config, TrainerConfig
from experiments.data.cache import content_hash
from experiments.runs import CONFIG, RunFolder, read_config
from experiments.system.machine import one_line
from experiments.system.paths import ROOT
from zoo import registry
from zoo.config import Architecture, from_dict, used
from zoo.errors import UserError
from zoo.model import meta_model
from zoo.options import deciding

if TYPE_CHECKING:
    from experiments.planning.plan import Plan

IDENTITY_FORMAT = 2
DATA_KEYS = ("pack", "seq_len", "batch_size")
TRAINER_KEYS = ("max_steps", "accumulate", "precision", "val_every", "val_tokens", "patience")
EVALUATE_KEYS = ("stride", "windows")
HUB_KEYS = ("dataset", "config", "split", "revision")
START_KEYS = ("sha256", "indexer", "gates")


def identify(config: Config, layers: Architecture, content: str) -> dict[str, Any]:
    """Everything that can change a run's weights and how it is scored; not which splits are: more can be scored later.

    No paths, devices, loggers, threads, recomputing, logging intervals.

    layers: those of its model (`architecture_of`); content: hash of the text as the model sees it
    (`data.fingerprint`). Options that were added later are left out where their values keep the behaviour from before
    (zoo.options).
    """
    unequal = _unequal_micro_batches(config)
    of_hub = config.data.name == "hf" and config.data.revision is not None
    return {
        "format": IDENTITY_FORMAT,
        "model": used(config.model, layers),
        # What names a data set of the hub and its commit; the content of any text is there anyway.
        "data": {"content": content, **deciding(config.data, DATA_KEYS + (HUB_KEYS if of_hub else ()))},
        "recipe": {
            **deciding(config.trainer, TRAINER_KEYS),
            # Where the rate comes from changes nothing.
            **deciding(dataclasses.replace(config.optim, lr_study=None)),
            # Earlier runs took the mean of their micro-batches' means, which is another number where they are unequal.
            **({"micro_batches": "summed"} if unequal else {}),
        },
        "evaluate": deciding(config.evaluate, EVALUATE_KEYS),
        "seed": config.seed,
        **({} if config.start.weights is None else {"start": deciding(config.start, START_KEYS)}),
    }


def _unequal_micro_batches(config: Config) -> bool:
    """Return whether the micro-batches of a step may differ in what their losses are means over.

    Answers, of a task; sequences, of packed documents in a model with auxiliary losses that have a weight.
    """
    if config.trainer.accumulate == 1:
        return False
    if config.data.name in data.TASKS:
        return data.TaskSet(config.data).answers_vary
    if config.data.pack != "document":
        return False
    return any(meta_model(config.model, **config.sizes).aux_weights.values())


def run_name(identity: dict[str, Any]) -> str:
    """The name of a run's folder: 12 hexadecimal digits of its identity's hash."""
    return content_hash(identity, 12)


def folder_of(config: Config, identity: dict[str, Any]) -> tuple[dict[str, Any], RunFolder]:
    """The folder of a run and the identity that names it: that of format 1 where only such a folder is there."""
    place, earlier = Path(config.results) / config.name, as_format_1(identity, config.evaluate.splits)
    if (place / run_name(earlier)).is_dir() and not (place / run_name(identity)).is_dir():
        identity = earlier
    return identity, RunFolder(place / run_name(identity))


def as_format_1(identity: dict[str, Any], splits: list[str]) -> dict[str, Any]:
    """The identity as runs of before recorded it, in whose names the splits to score (evaluate.splits) still were."""
    return {**identity, "format": 1, "evaluate": {**identity["evaluate"], "splits": list(splits)}}


def recorded_config(values: dict[str, Any]) -> Config:
    """The configuration that a run's config.yaml recorded, as far as it decides the identity; the rest is at defaults.

    So `identify(c, architecture_of(c.model), content)` for c = recorded_config(values) is the run's identity, also
    where the run is older than some options. Raises UserError for an option that decided it and no longer exists.
    """
    parts = {"data": DATA_KEYS, "trainer": TRAINER_KEYS, "evaluate": (*EVALUATE_KEYS, "splits")}
    kept = {
        name: {key: values[name][key] for key in keys if key in values[name]} for name, keys in parts.items()
    }
    if (task := values["data"]["name"]) in data.TASKS:
        kept["data"] |= {"name": task, "tasks": {task: values["data"]["tasks"][task]}}
    if values["data"]["name"] == "hf":
        kept["data"] |= {key: values["data"][key] for key in ("name", *HUB_KEYS)}
    sections = {name: values[name] for name in ("model", "optim", "seed", "start") if name in values}
    return from_dict(Config, {**sections, **kept}, "config", recorded=True)


# Files of blocks: a run records their hashes when it begins. They are no part of its identity.


def block_files(layers: Architecture) -> dict[str, str]:
    """Hash by path of the files that define the mixers, the residual scheme and the channel mixer of a model.

    Of kernels and other modules nothing: a summary's `commit` tells them, where nothing was uncommitted.
    """
    hashes = ((registry.source_file(block.cls), file_hash(block)) for block in layers.blocks)
    return {
        str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file): digest
        for file, digest in hashes
        if file
    }


def file_hash(block: registry.Block) -> str:
    """Hash of the file that defines a block, 16 hex digits; "" where it was defined in a notebook."""
    return registry.source_hash(block.cls)


def tell_earlier(plans: Iterable[Plan]) -> None:
    """Print notices about runs that had begun before, on the standard error: changed files, other settings."""
    _tell_changed(plans)
    _tell_other_settings(plans)


def _tell_changed(plans: Iterable[Plan]) -> None:
    """Print a notice for every file of a block that was changed after runs of it had begun."""
    runs: dict[tuple[str, bool], list[Path]] = {}
    for planned in plans:
        if not (planned.folder.complete or planned.folder.resumable):
            continue
        before = planned.folder.block_files()
        for file, now in block_files(planned.layers).items():
            if before.get(file, now) != now:
                runs.setdefault((file, planned.folder.complete), []).append(planned.folder.path)
    for (file, complete), folders in runs.items():
        others = f" and {len(folders) - 1} more" if folders[1:] else ""
        since = (
            "had been trained, and their results are of the earlier file"
            if complete
            else "had begun; they go on from their checkpoints, and their results will be of both"
        )
        print(
            f"notice: {file} was changed after {folders[0]}{others} {since}; to train the new one from the start, give "
            "another name=, or remove these folders",
            file=sys.stderr,
            flush=True,
        )


# Settings outside the identity, which a command could lose in silence. Cells of a sweep that differ in nothing else are
# one run, and a complete run stays as it was made, whatever is asked.

_NAMING = (
    *("model", "data", "start", "optim", "seed", "match", "match_length", "trainer.tokens_per_parameter"),
    *(f"trainer.{key}" for key in TRAINER_KEYS),
    *(f"evaluate.{key}" for key in EVALUATE_KEYS),
)
_BUT = ("model.backend", "data.cache_dir")
_OF_THE_COMMAND = ("progress", "max_minutes", "pause_at", "checkpoint_every")
"""Options of the trainer that leave no trace in a complete run."""


def refuse_lost_values(plans: Iterable[Plan]) -> None:
    """Raise UserError for cells that are one run and ask for different settings: it can have one of them."""
    first: dict[Path, Plan] = {}
    lost: dict[str, None] = {}
    for planned in plans:
        before = first.setdefault(planned.folder.path, planned)
        if before is not planned:
            values, others = (dict(leaves(dataclasses.asdict(each.config))) for each in (planned, before))
            differ = (key for key, value in values.items() if value != others.get(key))
            lost.update(dict.fromkeys(key for key in differ if not _can_name(key)))
    if lost:
        raise UserError(
            f"{', '.join(lost)} cannot be swept: a run's folder does not depend on it, so these cells would share one "
            "run, trained once; give one value, or run one command per value, each with its own name="
        )


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


def _tell_other_settings(plans: Iterable[Plan]) -> None:
    """Print a notice where complete runs were made with other settings than asked for."""
    by_difference: dict[str, list[Plan]] = {}
    for planned in plans:
        if planned.folder.complete and (differ := _differences(planned)):
            by_difference.setdefault(", ".join(differ), []).append(planned)
    for differ, alike in by_difference.items():
        others = f" and {len(alike) - 1} more" if alike[1:] else ""
        print(
            f"notice: {alike[0].folder.path}{others} is complete, trained with {differ}; these settings are "
            "not part of a "
            "run's identity: to train with the new ones, give another name= or remove the folder",
            file=sys.stderr,
            flush=True,
        )


def _differences(planned: Plan) -> list[str]:
    """`trainer.compile=false (asked: true)` for every such setting of a complete run; none where it is not recorded."""
    try:
        recorded = dict(leaves(read_config(planned.folder.path / CONFIG)))
    except (OSError, ValueError):
        return []  # a damaged file is complained of where the run is read
    if machine := planned.folder.summary().get("machine"):
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
    return one_line(value if isinstance(value, str) else json.dumps(value, default=str))
