"""A BPE trained on the training split."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenizers import models, pre_tokenizers, trainers

from experiments.data.cache import build_once
from experiments.data.config import DataConfig
from experiments.data.tokenization.base import SEPARATOR, Tokenizer, register_tokenizer
from experiments.data.tokenization.byte_level_bpe import (
    BytePairTokenizer,
    assemble,
    parallel,
    pieces,
    restore,
)
from experiments.hashing import content_hash
from zoo.errors import UserError

_TRAINER_VERSION = 1
_SMALLEST = 257
_FILE = "tokenizer.json"


def train(texts: Iterable[str], vocab_size: int) -> BytePairTokenizer:
    """A BPE of ``vocab_size`` entries: `<|endoftext|>` (id 0), the 256 bytes, then merges, most frequent
    first.

    A text too small for so many merges gives fewer entries. The result depends on nothing but the arguments.
    """
    backend = assemble(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with parallel():
        backend.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
    return BytePairTokenizer("bpe", backend)


@register_tokenizer("bpe")
class _Trained:
    def check(self, cfg: DataConfig) -> None:
        if cfg.vocab_size < _SMALLEST:
            raise UserError(
                f"data.vocab_size={cfg.vocab_size} is too small for a byte-level BPE: the 256 bytes and the "
                f"document separator alone take {_SMALLEST}; give at least that, or data.tokenizer=bytes"
            )

    def spec(self, cfg: DataConfig) -> dict[str, Any]:
        return {"kind": "bpe", "vocab_size": cfg.vocab_size, "trainer": _TRAINER_VERSION}

    def make(
        self, cfg: DataConfig, texts: Callable[[], Iterable[str]], training: str, cache: Path
    ) -> Tokenizer:
        def build(folder: Path) -> None:
            (folder / _FILE).write_text(train(texts(), cfg.vocab_size).to_json(), encoding="utf-8")

        key = content_hash([training, self.spec(cfg)])
        folder = build_once(cache / "tokenizers", key, build, _problem)
        return restore(_read(folder))

    def restore(self, saved: dict[str, Any]) -> Tokenizer:
        return restore(saved)


def _read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / _FILE).read_text(encoding="utf-8"))


def _problem(folder: Path) -> str | None:
    try:
        restore(_read(folder))
    except Exception as error:  # the library raises bare Exception for tables that do not fit
        return f"{_FILE}: {error}"
    return None
