"""A finished run or a checkpoint, as the jobs that read one need it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import yaml

import zoo
from experiments.data import DataConfig
from experiments.data.tokenization import Tokenizer, from_json
from experiments.runs import CONFIG
from zoo.config import from_dict
from zoo.errors import UserError
from zoo.io import read_card
from zoo.model import LanguageModel


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model in evaluation mode with its tokenizer, the run folder it came from and that run's text.

    Of the run's configuration only the text is read: runs made before some other key existed stay readable.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    folder: Path
    data: DataConfig


def open_trained(path: str | None, device: torch.device) -> Trained:
    """Open `run=PATH`, a run folder or a checkpoint in one. Raises UserError with how to give one."""
    if path is None:
        raise UserError(
            "which model? Give run=results/NAME/RUN (a run folder) or run=.../checkpoints/STEP.ckpt"
        )
    where = Path(path)
    card = read_card(where)
    folder = where if where.is_dir() else where.parent.parent
    if "tokenizer" not in card or not (folder / CONFIG).is_file():
        raise UserError(
            f"{path} has no tokenizer or no {CONFIG} beside it; give the folder of a run of this project"
        )
    text = from_dict(DataConfig, yaml.safe_load((folder / CONFIG).read_text())["data"], "data")
    return Trained(zoo.load(where, device), from_json(card["tokenizer"]), folder, text)
