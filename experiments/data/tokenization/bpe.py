"""Byte-level byte-pair encoding (Sennrich et al. 2016; on bytes: Radford et al. 2019), and its training."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from experiments.data.cache import build_once, content_hash
from experiments.data.config import DataConfig
from experiments.data.tokenization.base import register_tokenizer
from zoo.errors import UserError
from zoo.tokenization import SEPARATOR, BytePairTokenizer, Tokenizer, parallel

_TRAINER_VERSION = 1
_SMALLEST = 257
_LARGEST = 2**20
_FILE = "tokenizer.json"

PIECE = 1 << 16
_SAFE = re.compile(r" (?=\S)")


def assemble(model: models.BPE) -> Backend:
    """A backend that splits text as GPT-2 does and never puts a space in front."""
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    return backend


def pieces(text: str, length: int = PIECE) -> Iterator[str]:
    """Pieces of ``text`` of about ``length`` characters whose tokens, joined, are those of the whole text.

    GPT-2's pre-tokenizer (` ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`) always starts a word
    at a space that a non-space follows: the text before it is split in the same way without the rest.
    Text without such a space stays whole. This bounds the memory of one call, and lets one long document use
    all cores.
    """
    start = 0
    while len(text) - start > length:
        cut = _SAFE.search(text, start + length)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def train(texts: Iterable[str], vocab_size: int) -> BytePairTokenizer:
    """A BPE of ``vocab_size`` entries: `<|endoftext|>` (id 0), the 256 bytes, then merges, most frequent first.

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
        if (
            cfg.vocab_size > _LARGEST
        ):  # tokenizers reserves memory for all entries, and aborts where there is none
            raise UserError(
                f"data.vocab_size={cfg.vocab_size} is above {_LARGEST}, more than any text here fills"
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
        return BytePairTokenizer.restore(_read(folder))


def _read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / _FILE).read_text(encoding="utf-8"))


def _problem(folder: Path) -> str | None:
    try:
        BytePairTokenizer.restore(_read(folder))
    except Exception as error:  # the library raises bare Exception for tables that do not fit
        return f"{_FILE}: {error}"
    return None
