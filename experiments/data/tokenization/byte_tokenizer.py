"""The simplest tokenizer: the bytes of UTF-8."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data.config import DataConfig
from experiments.data.tokenization.base import SEPARATOR, Tokenizer, register_tokenizer


class ByteTokenizer:
    """The 256 byte values of UTF-8, and 256 for the document separator."""

    name = "bytes"
    vocab_size = 257
    bos_id = 256

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of byte values; bytes that are no UTF-8 become replacement characters."""
        return b"".join(bytes([i]) if i < 256 else SEPARATOR.encode() for i in ids).decode("utf-8", "replace")

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The bytes of each text, uint8 arrays."""
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def identity(self) -> dict[str, Any]:
        """Kind and size."""
        return {"kind": "bytes", "vocab_size": self.vocab_size}

    def to_json(self) -> str:
        """The kind, which is all there is to know."""
        return json.dumps({"kind": "bytes"})


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

    def restore(self, saved: dict[str, Any]) -> Tokenizer:
        return ByteTokenizer()
