"""Loading a finished run or a checkpoint: model, tokenizer and text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
import yaml

import zoo
from experiments import data
from experiments.data import Corpus, DataConfig
from experiments.data.config import tasks_from
from experiments.parallel.group import pick_precision
from experiments.runs.folders import CONFIG
from zoo.backends import check_backend
from zoo.config import from_dict
from zoo.errors import UserError
from zoo.io import read_card
from zoo.model import LanguageModel
from zoo.tokenization import Tokenizer

Uses = tuple[str, ...]
OTHER_BACKEND = "it computes the same by any other: give model.backend=auto"
"""What to do about a run's backend that serves nothing here."""


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A model in evaluation mode with its tokenizer, the run folder it came from and that run's text.

    step: optimiser steps that the weights were trained for, if recorded.

    Of the run's configuration only the node `data` is read, so that runs made before some other key existed stay
    readable. Its cache_dir is ignored: the cache is that of whoever reads the run, on another machine perhaps.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    folder: Path
    data: DataConfig
    step: int | None = None


def load_run(path: str | None, device: torch.device, uses: Uses = ("scoring",), **how: Any) -> LoadedRun:
    """The model at `run=PATH`: a run folder, or a checkpoint or a folder of weights in one.

    uses, how: as `load_model` takes them. Raises UserError with how to give a run.
    """
    if path is None:
        raise UserError(
            "which model? Give run=results/NAME/RUN (a run folder) or run=.../checkpoints/STEP.ckpt"
        )
    where = Path(path)
    card = read_card(where)
    if "task" in card:
        raise UserError(
            f"{path} was trained on the task {card['task']['name']}, which has no text to generate or measure on; "
            "job=evaluate scores it"
        )
    folder = where if (where / CONFIG).is_file() else where.parent.parent
    if "tokenizer" not in card or not (folder / CONFIG).is_file():
        raise UserError(
            f"{path} has no tokenizer or no {CONFIG} beside it; give the folder of a run of this project"
        )
    text = recorded_data(folder / CONFIG)
    packed = text.pack == "document"
    tokenizer, model = zoo.tokenizer(where), load_model(where, device, uses, packed=packed, **how)
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"the tokenizer at {path} has {tokenizer.vocab_size:,} tokens and its model knows {model.vocab_size:,}"
        )
    return LoadedRun(model, tokenizer, folder, text, card.get("step"))


def load_model(
    path: str | Path,
    device: torch.device,
    uses: Uses,
    *,
    precision: str = "fp32",
    backend: str | None = None,
    packed: bool = False,
) -> LanguageModel:
    """`zoo.load`, of a model that its backend serves here in these uses (zoo.backends). Raises UserError if not.

    precision: as in trainer.precision; backend: in place of the one that it was trained with; packed: whether it is
    used on sequences of several documents.
    """
    model = zoo.load(path, device, backend=backend)
    half = pick_precision(precision, device) == "bf16"
    where = {"seq_len": model.seq_len, "device": device, "half": half, "packed": packed}
    check_backend(model.config, uses, remedy=OTHER_BACKEND, **where)
    return model


def recorded_data(path: Path) -> DataConfig:
    """The node `data` of a run's configuration, config.yaml. Raises UserError where the file is damaged."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))["data"]
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"cannot read {path} ({type(error).__name__}: {error}); restore it") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} says nothing of the run's data; restore it")
    tasks = values.pop("tasks", {})
    read = from_dict(DataConfig, values, "data", recorded=True)
    return dataclasses.replace(read, tasks=tasks_from(tasks), cache_dir=None)


def load_corpus(run: LoadedRun, paths: DataConfig, progress: bool = True) -> Corpus:
    """The tokenised text that a run was trained on; paths in `paths` replace the recorded ones (files may move).

    Raises UserError as `data.prepare` does, and where the text at hand gives another tokenizer.
    """
    given = {k: v for k in ("path", "train_path", "gpt2_path", "cache_dir") if (v := getattr(paths, k))}
    cfg = dataclasses.replace(run.data, **given)
    data.check(cfg)
    corpus = data.prepare(cfg, progress)
    if corpus.tokenizer.identity() != run.tokenizer.identity():
        raise UserError(
            f"the text at hand gives another tokenizer than {run.folder} was trained with; restore its text"
        )
    return corpus
