"""Models to measure: presets, and the models of runs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import zoo
from experiments.bench.cases import matching_names
from experiments.bench.model_steps import make_model
from experiments.configuration.compose import architectures
from experiments.configuration.other_model import given_backend
from experiments.configuration.schema import Config
from experiments.parallel.group import pick_precision
from experiments.probing.find_runs import find_runs
from experiments.runs.folders import IDENTITY
from experiments.runs.load_run import OTHER_BACKEND
from zoo.backends import check_backend
from zoo.config import ModelConfig, from_dict
from zoo.errors import UserError
from zoo.io import CARD, read_card
from zoo.model import LanguageModel


@dataclasses.dataclass(frozen=True)
class TimedModel:
    """A model to measure: its name in the table, its configuration, and what makes it for contexts of a length."""

    name: str
    config: ModelConfig
    build: Callable[[int], LanguageModel]


def timed_models(config: Config, device: torch.device) -> list[TimedModel]:
    """The models of bench.runs, and the presets that bench.cases names: all where there are no runs and no cases."""
    bench, known = config.bench, architectures(config.model)
    names = [] if bench.runs and bench.cases is None else matching_names(bench.cases, list(known))
    presets = [
        TimedModel(name, known[name], functools.partial(_preset, config, known[name], device))
        for name in names
    ]
    paths = [path for place in bench.runs or [] for path in _models_at(Path(place), config)]
    return presets + [_run(path, config, device) for path in dict.fromkeys(paths)]


def _preset(config: Config, model: ModelConfig, device: torch.device, length: int) -> LanguageModel:
    return make_model(config, model, length, device).eval()


def _models_at(place: Path, config: Config) -> Iterator[Path]:
    """A run, an exported model or a checkpoint itself; of another folder the complete runs in it."""
    if place.is_file() or (place / CARD).is_file():
        yield place
    else:
        found, _ = find_runs(dataclasses.replace(config, run=None, runs=str(place)))
        yield from found


def _run(path: Path, asked: Config, device: torch.device) -> TimedModel:
    """The model at a path. Raises UserError where there is none, or none that its backend serves."""
    card = read_card(path)
    if not isinstance(card.get("model"), dict):
        raise UserError(f"the {CARD} at {path} describes no model; export the model again")
    config = from_dict(ModelConfig, card["model"], recorded=True)
    config = dataclasses.replace(config, backend=given_backend(asked) or config.backend)
    half = pick_precision(asked.trainer.precision, device) == "bf16"
    seq_len = card.get("seq_len") or asked.data.seq_len
    where = {"seq_len": seq_len, "device": device, "half": half}
    check_backend(config, ("scoring", "decoding"), remedy=OTHER_BACKEND, **where)
    return TimedModel(
        _name(path, card), config, lambda length: zoo.load(path, device, backend=config.backend)
    )


def _name(path: Path, card: dict[str, Any]) -> str:
    """EXPERIMENT/RUN, with the file of a checkpoint in it; of another folder its name and a hash of its card."""
    parts = path.resolve().parts
    if path.is_file():
        return "/".join(parts[-4:])
    if (path / IDENTITY).is_file():  # the run's name is a hash already
        return "/".join(parts[-2:])
    digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()
    return f"{parts[-1]} #{digest[:6]}"
