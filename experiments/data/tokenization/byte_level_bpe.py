"""Byte-level byte-pair encoding (Sennrich et al. 2016; on bytes: Radford et al. 2019)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from experiments.data.tokenization.base import SEPARATOR

_SWITCH = "TOKENIZERS_PARALLELISM"
_SET_BY_USER = _SWITCH in os.environ

PIECE = 1 << 16
_SAFE = re.compile(r" (?=\S)")


class BytePairTokenizer:
    """A byte-level BPE held by the tokenizers library. ``kind`` is the name it is registered under."""

    def __init__(self, kind: str, backend: Backend) -> None:
        # Without this a document that spells the separator out would be cut in two there.
        backend.encode_special_tokens = True
        self._kind = kind
        self._backend = backend
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.bos_id = backend.token_to_id(SEPARATOR)
        self.name = f"bpe-{self.vocab_size}" if kind == "bpe" else kind

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; a separator that it spells out is text, too."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, separators included."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of each text, uint32 arrays, on all cores."""
        with parallel():
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def identity(self) -> dict[str, Any]:
        """Kind, size and the SHA-256 of the library's tables."""
        tables = hashlib.sha256(self._backend.to_str().encode()).hexdigest()
        return {"kind": self._kind, "vocab_size": self.vocab_size, "tables": tables}

    def to_json(self) -> str:
        """The kind and the library's own form of the tokenizer."""
        return json.dumps({"kind": self._kind, "tokenizer": self._backend.to_str()})


def restore(saved: dict[str, Any]) -> BytePairTokenizer:
    """The tokenizer from what `BytePairTokenizer.to_json` wrote."""
    return BytePairTokenizer(saved["kind"], Backend.from_str(saved["tokenizer"]))


def assemble(model: models.BPE) -> Backend:
    """A backend that splits text as GPT-2 does and never puts a space in front."""
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    return backend


@contextlib.contextmanager
def parallel() -> Iterator[None]:
    """Let the library use its threads here, and nowhere after: in a forked child they would hang.

    A value of TOKENIZERS_PARALLELISM that the user set stands.
    """
    if _SET_BY_USER:
        yield
        return
    os.environ[_SWITCH] = "true"
    try:
        yield
    finally:
        os.environ[_SWITCH] = "false"


def pieces(text: str, length: int = PIECE) -> Iterator[str]:
    """Cut ``text`` into pieces of about ``length`` characters whose tokens joined are the whole text's
    tokens.

    GPT-2's pre-tokenizer (` ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+`) always starts a word
    at a space that a non-space follows: whatever stands before matches the same way with the rest cut off.
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
