"""How the configuration makes a tokenizer, and the table of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from experiments.data.config import DataConfig
from zoo.tokenization import Tokenizer


class TokenizerKind(Protocol):
    """An entry of the table: how the configuration makes a tokenizer; `zoo.tokenization.RESTORE` reads saved ones."""

    def check(self, cfg: DataConfig) -> None:
        """Raise UserError for settings that cannot work; no network access."""

    def spec(self, cfg: DataConfig) -> dict[str, Any]:
        """The facts that decide the tokenizer's content, besides the training text. May read the hub."""

    def make(
        self, cfg: DataConfig, texts: Callable[[], Iterable[str]], training: str, cache: Path
    ) -> Tokenizer:
        """The tokenizer. texts: returns a new iterator over the training documents; training: hash of their content."""


TOKENIZERS: dict[str, TokenizerKind] = {}


def register_tokenizer(name: str) -> Callable[[type], type]:
    """Class decorator: make a kind of tokenizer available as ``data.tokenizer=<name>``."""

    def register(cls: type) -> type:
        TOKENIZERS[name] = cls()
        return cls

    return register
