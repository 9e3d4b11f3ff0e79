"""Models on disk: `model.safetensors` with the weights, `model.json` with everything needed to build the module.

No pickles: a checkpoint of the training harness is read with `weights_only=True`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from zoo.config import ModelConfig, from_dict
from zoo.errors import UserError
from zoo.files import fit, read_json, read_whole, require_file, write_atomic, write_json
from zoo.model import LanguageModel, meta_model
from zoo.options import check_limits

WEIGHTS, CARD = "model.safetensors", "model.json"
FORMAT = 1
_SIZE = range(1, 2**31)
_CARD = {
    "vocab_size": _SIZE,
    "seq_len": _SIZE,
    "model": {str: object},
    "step?": range(2**63),
    "task?": {"name": str},
}


def card(model: LanguageModel, **extra: Any) -> dict[str, Any]:
    """Everything but the weights, as plain values, with the items of `extra` (a tokenizer, say) added."""
    config = dataclasses.asdict(model.config)
    return {
        "format": FORMAT,
        "vocab_size": model.vocab_size,
        "seq_len": model.seq_len,
        "model": config,
        **extra,
    }


def export(
    model: LanguageModel, folder: str | Path, *, weights: dict[str, Tensor] | None = None, **extra: Any
) -> Path:
    """Write weights and card into a folder, each file whole or not at all. Returns the folder.

    weights: whole tensors by name, in the shapes [...] of the model's own state and in its place, which may be in parts
    (None: its state).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = model.state_dict() if weights is None else weights
    tensors = {name: x.detach().cpu().contiguous() for name, x in state.items()}
    write_weights(folder / WEIGHTS, tensors)
    write_json(folder / CARD, card(model, **extra))
    return folder


def write_weights(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write CPU tensors as safetensors, atomically and without a second copy of them in memory. Raises OSError."""

    def write(partial: Path) -> None:
        try:
            safetensors.torch.save_file(tensors, partial, metadata=metadata)
        except safetensors.SafetensorError as error:
            # The system's number, which says that a disk is full, stands in the message alone.
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None:
                raise OSError(f"cannot write {path} ({_line(error)})") from error
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error

    write_atomic(path, write)


def build(description: dict[str, Any], *, backend: str | None = None) -> LanguageModel:
    """The module a card describes, with untrained weights. Raises UserError where the card is wrong.

    backend: in place of the card's.
    """
    return _made(LanguageModel, *_described(description, backend))


def _described(description: Any, backend: str | None) -> tuple[ModelConfig, dict[str, int]]:
    """The configuration in a card, checked, and the sizes that `LanguageModel` takes beside it."""
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UserError(
            f"the model's {CARD} is not of format {FORMAT}; export the model again with this version"
        )
    try:
        fit(description, _CARD)
    except ValueError as error:
        raise UserError(f"the model's {CARD}: {error}; export the model again") from error
    config = from_dict(ModelConfig, description["model"], recorded=True)
    check_limits(config, "model.")
    if backend is not None:
        config = dataclasses.replace(config, backend=backend)
    return config, {key: description[key] for key in ("vocab_size", "seq_len")}


def _made(make: Callable[..., LanguageModel], config: ModelConfig, sizes: dict[str, int]) -> LanguageModel:
    try:
        return make(config, **sizes)
    except (RuntimeError, OverflowError, MemoryError) as error:  # sizes that no tensor or no memory has
        raise UserError(
            f"the model that its {CARD} describes cannot be built here ({_line(error)})"
        ) from error


def read_card(path: str | Path) -> dict[str, Any]:
    """The card of a run folder, an exported folder or a checkpoint. Raises UserError that says how to get one."""
    path = Path(path)
    if path.is_dir() and (path / CARD).exists():
        try:
            return read_json(path / CARD, _CARD)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path / CARD} ({_line(error)}); export the model again") from error
    if path.is_file() and path.suffix == ".ckpt":
        return _checkpoint(path)["card"]
    raise UserError(
        f"no model at {path}: give a run folder that holds {WEIGHTS} and {CARD} (a finished run, "
        "results/EXPERIMENT/RUN), or a checkpoint file (results/EXPERIMENT/RUN/checkpoints/*.ckpt)"
    )


def load(
    path: str | Path, device: str | torch.device = "cpu", *, backend: str | None = None
) -> LanguageModel:
    """The model of a finished run, an exported folder or a checkpoint, in evaluation mode.

        model = zoo.load("results/quickstart/1a2b3c4d5e6f")

    backend: kernels' backend; None for the one that it was trained with.
    Raises UserError where there is none, or where the weights do not fit the description.
    """
    path = Path(path)
    config, sizes = _described(read_card(path), backend)
    weights = _checkpoint_weights(path) if path.suffix == ".ckpt" else _weights(path / WEIGHTS)
    # Before memory is taken, for a card may say any size.
    planned = _made(meta_model, config, sizes).state_dict()
    for name in sorted(planned.keys() & weights.keys()):
        if weights[name].shape != planned[name].shape:
            raise UserError(
                f"the weights at {path} do not match its {CARD}: {name} has the shape "
                f"{list(weights[name].shape)}, not {list(planned[name].shape)}"
            )
    model = _made(LanguageModel, config, sizes)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"the weights at {path} do not match its {CARD}: {_line(error)}") from error
    return model.to(device).eval()


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        require_file(path)
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"cannot read weights {path} ({_line(error)}); export the model again") from error


def _checkpoint_weights(path: Path) -> dict[str, Tensor]:
    """The model's weights in a checkpoint of the harness, which may hold a compiled copy of the model too."""
    prefix, state = "model.", (_sharded_weights if path.is_dir() else _whole_weights)(path)
    return {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}


def _whole_weights(path: Path) -> dict[str, Tensor]:
    return _checkpoint(path)["state_dict"]


def _sharded_weights(path: Path) -> dict[str, Tensor]:
    try:
        return read_whole(path, "state_dict")
    except Exception as error:
        raise _unreadable(path, error) from error


def _checkpoint(path: Path) -> dict[str, Any]:
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged archive
        raise _unreadable(path, error) from error
    if not isinstance(checkpoint, dict) or not {"card", "state_dict"} <= checkpoint.keys():
        raise UserError(f"{path} is not a checkpoint of this project: it has no card or no weights")
    try:
        fit(checkpoint["card"], _CARD)
        fit(checkpoint["state_dict"], {str: Tensor})
    except ValueError as error:
        raise _unreadable(path, error) from error
    return checkpoint


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"cannot read checkpoint {path} ({_line(error)}); use another checkpoint of its folder")


def _line(error: Exception) -> str:
    """An error's message on one line of readable length."""
    return textwrap.shorten(str(error), 300)
