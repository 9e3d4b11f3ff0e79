"""A published model on disk: config.json, weights as safetensors in one file or several, a tokenizer.

Weights are read tensor by tensor, so that memory never holds more than the model and one file. No pickles, no code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from torch import Tensor

from zoo.config import ModelConfig
from zoo.errors import UserError
from zoo.files import read_bytes
from zoo.files import read_json as read_any
from zoo.model import LanguageModel, on_meta, to_be_filled
from zoo.pretrained.families import Family, read_config
from zoo.pretrained.links import Link
from zoo.tokenization import SEPARATOR, Tokenizer, from_json

CONFIG, WEIGHTS, INDEX, TOKENIZER = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NEVER_READ = (".rotary_emb.inv_freq",)
"""Ends of the names of published tensors that follow from the configuration; older versions saved them."""
_AT_ZERO = (".step", ".total", ".counts", ".balance.bias")
"""Ends of the names of our buffers that are 0 in a model where nothing is published for them."""
_SHOWN = 3


class Place(NamedTuple):
    """Where a tensor is: the file, its name in there, its shape."""

    file: Path
    name: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Published:
    """A folder whose config.json was read: its family, the model's options, and where its weights are.

    seq_len: the length that it was trained for.
    """

    folder: Path
    family: Family
    config: ModelConfig
    vocab_size: int
    seq_len: int

    @classmethod
    def open(cls, folder: str | Path) -> Published:
        """Read config.json. Raises UserError for a folder that is no such model, and a family that has no map."""
        folder = Path(folder).expanduser()
        if not (folder / CONFIG).is_file():
            raise UserError(
                f"{folder} is not a model in Hugging Face's layout: it has no {CONFIG}; give the folder that holds "
                f"{CONFIG}, {TOKENIZER} and *.safetensors"
            )
        values = read_json(folder / CONFIG)
        try:
            return cls(folder, *read_config(values))
        except UserError as error:
            raise UserError(f"{folder}: {error}") from error

    def load(self, *, seq_len: int | None = None, backend: str | None = None) -> LanguageModel:
        """The model in fp32 on the CPU, in evaluation mode; seq_len: in place of the length that it was trained for.

        Raises UserError where weights are missing, left over, of other shapes, damaged or not as safetensors.
        """
        config = self.config if backend is None else dataclasses.replace(self.config, backend=backend)
        sizes = {"vocab_size": self.vocab_size, "seq_len": seq_len or self.seq_len}
        planned = on_meta(config, **sizes)
        links, shards = self.family.links(planned), self._shards()
        self._check(planned, links, shards)
        model = to_be_filled(config, **sizes)
        targets = dict(model.named_parameters()) | dict(model.named_buffers())
        # By file, so that each is opened once and closed before the next one is read.
        order = sorted(links, key=lambda link: str(shards[link.theirs[0]].file))
        with torch.no_grad(), _Files(shards) as files:
            for link in order:
                for name, x in zip(link.ours, link.read(*map(files.read, link.theirs)), strict=True):
                    targets[name].copy_(x)
        return model.eval()

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of tokenizer.json; None where there is none. Raises UserError for a damaged one."""
        return read_tokenizer(self.folder) if (self.folder / TOKENIZER).is_file() else None

    def digest(self) -> str:
        """SHA-256 of config.json, the tokenizer and the weights, as hexadecimal digits."""
        digest = hashlib.sha256()
        names = {CONFIG, TOKENIZER, *(place.file.name for place in self._shards().values())}
        for path in sorted(self.folder / name for name in names):
            if path.is_file():
                digest.update(f"{path.name} {path.stat().st_size}\n".encode())
                with open(path, "rb") as file:
                    while block := file.read(1 << 24):
                        digest.update(block)
        return digest.hexdigest()

    def _shards(self) -> dict[str, Place]:
        """Where every tensor is, by its published name. Raises UserError where one is missing or cut."""
        if (self.folder / INDEX).is_file():
            index = read_json(self.folder / INDEX).get("weight_map")
            if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
                raise UserError(f"{self.folder / INDEX} has no weight_map; restore it")
            files = {self.folder / Path(name).name for name in index.values()}
        else:
            files, index = {self.folder / WEIGHTS}, None
        shards = []
        for file in sorted(files):
            if not file.is_file():
                raise UserError(self._without(file))
            shards += [Place(file, name, shape) for name, shape in _header(file).items()]
        if index is not None and (gone := sorted(set(index) - {place.name for place in shards})):
            raise UserError(
                f"{self.folder / INDEX} names tensors that its files do not hold ({_some(gone)}); fetch the "
                "whole folder again"
            )
        also = self.family.also or ("$^", "")
        return {re.sub(*also, place.name): place for place in shards}

    def _without(self, file: Path) -> str:
        pickled = sorted(path.name for pattern in _PICKLES for path in self.folder.glob(pattern))
        if pickled:
            return (
                f"{self.folder} has no {file.name}, only pickled weights ({_some(pickled)}), which can run code and "
                "are not loaded; give a folder with *.safetensors"
            )
        return f"{self.folder} has no {file.name}; fetch the whole folder again"

    def _check(self, model: LanguageModel, links: Sequence[Link], shards: Mapping[str, Place]) -> None:
        """Compare names and shapes of what is there and what is to be. Raises UserError, naming some that differ."""
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        linked = [name for link in links for name in link.ours]
        known = model.state_dict().keys()
        left = {name for name in known - set(linked) if not name.endswith(_AT_ZERO)} | (set(linked) - known)
        if left or len(set(linked)) < len(linked):
            raise RuntimeError(
                f"the names of {self.family.model_type} do not fill the model: {_some(sorted(left))}"
            )
        wanted = {
            name: tuple(x.shape)
            for link in links
            for name, x in zip(link.theirs, link.write(*(state[ours] for ours in link.ours)), strict=True)
        }
        there = {name: place.shape for name, place in shards.items()}
        problems = {
            "missing": [f"{name} {_written(shape)}" for name, shape in wanted.items() if name not in there],
            "left over": [
                f"{name} {_written(there[name])}" for name in there if not self._read(name, wanted)
            ],
            "of another shape": [
                f"{name} {_written(there[name])} in place of {_written(shape)}"
                for name, shape in wanted.items()
                if there.get(name, shape) != shape
            ],
        }
        if any(problems.values()):
            differences = "; ".join(f"{word}: {_some(names)}" for word, names in problems.items() if names)
            raise UserError(f"the weights in {self.folder} do not match its {CONFIG}: {differences}")

    def _read(self, name: str, wanted: Mapping[str, Any]) -> bool:
        """Return whether a published tensor is used, or is one of those that are known to add nothing."""
        tied = name == "lm_head.weight" and self.config.tie_embeddings
        return name in wanted or tied or name.endswith(_NEVER_READ) or self._predicts_later(name)

    def _predicts_later(self, name: str) -> bool:
        """Whether it is of a layer behind the last, with which DeepSeek-V3 learns to predict later tokens."""
        layer = name.removeprefix("model.layers.").partition(".")[0]
        extra = self.family.model_type == "deepseek_v3" and name.startswith("model.layers.")
        return extra and layer.isdigit() and int(layer) >= (self.config.depth or 0)


def from_pretrained(
    folder: str | Path,
    device: str | torch.device = "cpu",
    *,
    seq_len: int | None = None,
    backend: str | None = None,
) -> LanguageModel:
    """The model of a folder in Hugging Face's layout, as a model of this project, in fp32 and evaluation mode.

        model = zoo.from_pretrained("Qwen3-0.6B")

    seq_len: the configured length (None: the one that it was trained for); backend: kernels' backend.
    Raises UserError for a folder or a family that cannot be read, in one line that says what is wrong.
    """
    return Published.open(folder).load(seq_len=seq_len, backend=backend).to(device)


class _Files:
    """Tensors by name from safetensors files, of which one is open at a time."""

    def __init__(self, shards: Mapping[str, Place]) -> None:
        self.shards, self.path, self.file = shards, None, None

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.file = None

    def read(self, name: str) -> Tensor:
        """One tensor, in the dtype that it has there. Raises UserError for a damaged file."""
        path, entry, _ = self.shards[name]
        try:
            if path != self.path:
                self.file = None
                self.path, self.file = path, safetensors.safe_open(path, framework="pt")
            # A copy: a view keeps the whole file mapped.
            return self.file.get_tensor(entry).clone()
        except (OSError, safetensors.SafetensorError) as error:
            raise _damaged(path, error) from error


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape by name of the tensors in a file. Raises UserError for one that is cut or no safetensors."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"cannot read weights {path} ({str(error)[:200]}); fetch the file again")


def _written(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def read_json(path: Path) -> dict[str, Any]:
    """An object of a JSON file. Raises UserError for anything else."""
    try:
        return read_any(path, {str: object})
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({str(error)[:200]}); fetch the file again") from error


# Tokenizers.


def read_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a folder with tokenizer.json: the same ids for every text, and its own separator.

    The separator is what config.json or tokenizer_config.json calls bos_token, or where they have none eos_token; else
    the token <|endoftext|>. Raises UserError where there is none of these, or the file is damaged.
    """
    folder = Path(folder).expanduser()
    if not (folder / TOKENIZER).is_file():
        raise UserError(f"{folder} has no {TOKENIZER}; give a folder with one")
    try:
        text = read_bytes(folder / TOKENIZER).decode("utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {folder / TOKENIZER} ({str(error)[:200]}); fetch it again") from error
    for separator in _separators(folder):
        saved = json.dumps({"kind": "pretrained", "tokenizer": text, "separator": separator})
        try:
            return from_json(saved)
        except LookupError:
            continue
        except UserError as error:
            raise UserError(f"{folder / TOKENIZER}: {error}") from error
        except Exception as error:  # the tokenizers' library raises bare ones
            raise UserError(
                f"cannot read {folder / TOKENIZER} ({str(error)[:200]}); fetch it again"
            ) from error
    raise UserError(
        f"{folder}: no token separates documents; name a bos_token or eos_token in tokenizer_config.json"
    )


def _separators(folder: Path) -> Iterator[int | str]:
    """Ids or spellings of tokens that may separate documents, the best first."""
    for key in ("bos_token", "eos_token"):
        for name, part in (("tokenizer_config.json", key), (CONFIG, f"{key}_id")):
            value = read_json(folder / name).get(part) if (folder / name).is_file() else None
            value = value.get("content") if isinstance(value, dict) else value
            value = value[0] if isinstance(value, list) and value else value
            if isinstance(value, int | str) and not isinstance(value, bool):
                yield value
    yield SEPARATOR
