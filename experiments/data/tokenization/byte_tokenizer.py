"""The simplest tokenizer: the bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from experiments.data.config import DataConfig
from experiments.data.tokenization.base import register_tokenizer
from zoo.tokenization import ByteTokenizer, Tokenizer


@register_tokenizer("bytes")
class _Bytes:
    def check(self, cfg: DataConfig) -> None:
        pass

    def spec(self, cfg: DataConfig) -> dict[str, Any]:
        return ByteTokenizer().identity()

    def make(
        self, cfg: DataConfig, texts: Callable[[], Iterable[str]], training: str, cache: Path
    ) -> Tokenizer:
        return ByteTokenizer()
