"""Documents to token files, in batches: memory does not grow with the corpus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from experiments.data.pieces import pieces
from experiments.data.sources.base import Document
from experiments.data.tokenization import Tokenizer

_BATCH_CHARACTERS = 1 << 21


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 for vocabularies under 65,536 entries, else uint32."""
    return np.dtype(np.uint16 if vocab_size < 65536 else np.uint32)


def write_tokens(
    documents: Iterable[Document], tokenizer: Tokenizer, file: Path, progress: Callable[[int], object]
) -> dict[str, int]:
    """Write every document, preceded by ``bos_id``, to ``file``; return tokens, words, bytes and documents.

    progress: called with the UTF-8 bytes of each document read.
    """
    counts = dict.fromkeys(("tokens", "words", "bytes", "documents"), 0)
    dtype = token_dtype(tokenizer.vocab_size)
    separator = np.array([tokenizer.bos_id], dtype=dtype)
    with file.open("wb") as out:
        waiting: list[str | None] = []

        def flush() -> None:
            encoded = iter(tokenizer.encode_batch([text for text in waiting if text is not None]))
            for text in waiting:
                ids = separator if text is None else next(encoded).astype(dtype)
                counts["tokens"] += len(ids)
                out.write(ids.tobytes())
            waiting.clear()

        pending = 0
        for document in documents:
            waiting.append(None)
            for piece in pieces(document.text):
                waiting.append(piece)
                pending += len(piece)
                if pending >= _BATCH_CHARACTERS:
                    flush()
                    pending = 0
            size = len(document.text.encode())
            counts["words"] += document.n_words
            counts["bytes"] += size
            counts["documents"] += 1
            progress(size)
        flush()
        out.flush()
        os.fsync(out.fileno())
    return counts
