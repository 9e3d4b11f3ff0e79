"""The interface of a tokenizer, and the table of all tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from experiments.data.config import DataConfig

SEPARATOR = "<|endoftext|>"


class Tokenizer(Protocol):
    """Text to token ids and back: decode(encode(text)) == text for every text that UTF-8 can write.

    `encode` never yields `bos_id`, not even for a text that spells the separator out; `decode` writes it as
    `<|endoftext|>`. Ids that do not form UTF-8 decode with replacement characters.
    """

    name: str
    vocab_size: int
    bos_id: int

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text as integer arrays, in parallel where the library can."""

    def identity(self) -> dict[str, Any]:
        """The facts that identify this tokenizer: kind, size, hash of its tables."""

    def to_json(self) -> str:
        """Everything `from_json` needs to make the same tokenizer anywhere."""


class TokenizerKind(Protocol):
    """An entry of the table: how the configuration makes a tokenizer."""

    def check(self, cfg: DataConfig) -> None:
        """Raise UserError for settings that cannot work; no network access."""

    def spec(self, cfg: DataConfig) -> dict[str, Any]:
        """The facts that decide the tokenizer's content, besides the training text. May read the hub."""

    def make(
        self, cfg: DataConfig, texts: Callable[[], Iterable[str]], training: str, cache: Path
    ) -> Tokenizer:
        """The tokenizer. texts: returns a new iterator over the training documents; training: hash of their content."""

    def restore(self, saved: dict[str, Any]) -> Tokenizer:
        """The tokenizer from what `to_json` wrote."""


TOKENIZERS: dict[str, TokenizerKind] = {}


def register_tokenizer(name: str) -> Callable[[type], type]:
    """Class decorator: make a kind of tokenizer available as ``data.tokenizer=<name>``."""

    def register(cls: type) -> type:
        TOKENIZERS[name] = cls()
        return cls

    return register


def from_json(text: str) -> Tokenizer:
    """The tokenizer that `Tokenizer.to_json` wrote. Raises ValueError for anything else."""
    saved = json.loads(text)
    if not isinstance(saved, dict) or saved.get("kind") not in TOKENIZERS:
        raise ValueError("this is not a tokenizer saved by Tokenizer.to_json")
    return TOKENIZERS[saved["kind"]].restore(saved)
