"""A tokenised corpus in the cache: writing its tokens, and opening its three splits as memory maps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data.config import DataConfig
from experiments.data.sources import SPLITS, Document
from experiments.data.tokenization import Tokenizer, from_json
from experiments.data.tokenization.bpe import pieces

META = "meta.json"
TOKENIZER = "tokenizer.json"
_BATCH_CHARACTERS = 1 << 21


@dataclass(frozen=True)
class Split:
    """One split of a corpus.

    tokens: read-only memory map, uint16 for vocabularies under 65,536, else uint32; every document is
        preceded by the tokenizer's ``bos_id``, so that every real token is predicted from something.
    n_words: whitespace-separated words plus one for each row or line end (WikiText's convention: 217,646 and
        245,569 for WikiText-103's validation and test).
    n_bytes: UTF-8 bytes of the text. n_documents: documents, each with one separator in ``tokens``.
    """

    tokens: np.ndarray
    n_words: int
    n_bytes: int
    n_documents: int


@dataclass(frozen=True)
class Corpus:
    """Splits "train", "validation" and "test", their tokenizer, and the hash of text and tokenizer."""

    splits: dict[str, Split]
    tokenizer: Tokenizer
    fingerprint: str
    labels: dict[str, str]
    config: DataConfig

    @property
    def document_bos(self) -> int | None:
        """The separator, which starts a new sequence, where documents are packed; None where pack=stream."""
        return self.tokenizer.bos_id if self.config.pack == "document" else None

    @property
    def vocab_size(self) -> int:
        """Tokens that the model must know."""
        return self.tokenizer.vocab_size

    @property
    def card(self) -> dict[str, Any]:
        """What a model's card says of what it was trained on."""
        return {"tokenizer": self.tokenizer.to_json()}

    def describe(self) -> dict[str, Any]:
        """The node `data` of a run's summary. Tokens count separators: tokens − documents are the text's."""
        return {
            "name": self.config.name,
            **self.labels,
            "tokenizer": self.tokenizer.name,
            "vocab_size": self.tokenizer.vocab_size,
            "seq_len": self.config.seq_len,
            "pack": self.config.pack,
            "fingerprint": self.fingerprint,
            "unigram_entropy": unigram_entropy(self.splits["train"].tokens, self.tokenizer.vocab_size),
            "splits": {
                name: {
                    "tokens": len(split.tokens),
                    "words": split.n_words,
                    "bytes": split.n_bytes,
                    "documents": split.n_documents,
                }
                for name, split in self.splits.items()
            },
        }


def unigram_entropy(tokens: np.ndarray, vocab_size: int) -> float:
    """−Σ p·ln p in nats a token, p the tokens' shares: the loss of predicting each token by its frequency."""
    counts = np.bincount(tokens, minlength=vocab_size)
    shares = counts[counts > 0] / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def tokens_file(folder: Path, split: str) -> Path:
    """The file of the tokens of ``split`` in the cache folder of a corpus."""
    return folder / f"tokens-{split}.bin"


def token_dtype(vocab_size: int) -> np.dtype:
    """The dtype of token ids: uint16 for vocabularies under 65,536 entries, else uint32."""
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


def open_corpus(folder: Path, cfg: DataConfig, labels: dict[str, str]) -> Corpus:
    """The corpus in a finished cache folder, its tokens memory-mapped."""
    meta = json.loads((folder / META).read_text())
    splits = {}
    for name in SPLITS:
        counts = meta["splits"][name]
        tokens = np.memmap(tokens_file(folder, name), dtype=meta["dtype"], mode="r")
        splits[name] = Split(tokens, counts["words"], counts["bytes"], counts["documents"])
    tokenizer = from_json((folder / TOKENIZER).read_text(encoding="utf-8"))
    return Corpus(splits, tokenizer, meta["fingerprint"], labels, cfg)


def corpus_problem(folder: Path) -> str | None:
    """The reason why a cache folder is damaged (its files disagree with meta.json), or None."""
    try:
        expected = json.loads((folder / META).read_text())["files"]
        for name, size in expected.items():
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found} bytes instead of {size}"
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"{META} cannot be read"
    return None
