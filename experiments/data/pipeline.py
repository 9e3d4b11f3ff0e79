"""From a configuration to a corpus: what the model will see (`fingerprint`) and its tokens (`prepare`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from experiments.data.cache import build_once
from experiments.data.config import DataConfig, cache_root
from experiments.data.contents import Contents, check_settings, check_sizes, contents
from experiments.data.corpus import META, TOKENIZER, Corpus, corpus_problem, open_corpus, tokens_file
from experiments.data.sources import SOURCES, SPLITS, Document
from experiments.data.tokenization import TOKENIZERS, Tokenizer
from experiments.data.tokenization.byte_level_bpe import pieces
from experiments.hashing import content_hash

_VERSION = 1
_BATCH_CHARACTERS = 1 << 21


def fingerprint(cfg: DataConfig) -> str:
    """Hash (32 hexadecimal digits) of what the model will see.

    It covers the text of each split in order, the split rule, and the tokenizer's kind, size and tables; not
    paths, nor how the tokens are cut (seq_len, batch_size, pack). The first call reads all text (and, for the
    hub, downloads it); later ones compare file times and are quick. Raises UserError as `check` does.
    """
    check_settings(cfg)
    return _fingerprint(cfg, contents(cfg))


def prepare(cfg: DataConfig, progress: bool = True) -> Corpus:
    """The tokenised corpus, from the cache if it is there.

    The cache folder is named by the fingerprint and made whole or not at all, once, however many processes
    ask. progress: show a bar on stderr (on a terminal) while tokenising. Raises UserError as `check` does,
    and when the hub cannot be reached, the cache cannot be written, or the text has too few tokens for
    ``seq_len``.
    """
    check_settings(cfg)
    read = contents(cfg)
    key = _fingerprint(cfg, read)

    def build(folder: Path) -> None:
        _tokenise(cfg, read, key, folder, progress)

    folder = build_once(cache_root(cfg) / "corpora", key, build, corpus_problem)
    corpus = open_corpus(folder, cfg, SOURCES[cfg.name].labels(cfg))
    check_sizes(cfg, {name: len(split.tokens) for name, split in corpus.splits.items()}, "tokens")
    return corpus


def _fingerprint(cfg: DataConfig, read: Contents) -> str:
    digests = {split: read[split]["digest"] for split in SPLITS}
    return content_hash([_VERSION, SOURCES[cfg.name].rule, digests, TOKENIZERS[cfg.tokenizer].spec(cfg)])


def _tokenise(cfg: DataConfig, read: Contents, key: str, folder: Path, progress: bool) -> None:
    """Fill a cache folder: tokens of every split, the tokenizer, and meta.json that says what they are."""
    source, cache = SOURCES[cfg.name], cache_root(cfg)

    def training_texts() -> Iterator[str]:
        return (document.text for document in source.documents(cfg, "train", cache))

    tokenizer = TOKENIZERS[cfg.tokenizer].make(cfg, training_texts, read["train"]["digest"], cache)
    bar = {"unit": "B", "unit_scale": True, "delay": 1, "disable": None if progress else True}
    total = sum(part["bytes"] for part in read.values())
    with tqdm(total=total, desc=f"tokenising {cfg.name}", **bar) as meter:
        splits = {
            split: write_tokens(
                source.documents(cfg, split, cache), tokenizer, tokens_file(folder, split), meter.update
            )
            for split in SPLITS
        }
    (folder / TOKENIZER).write_text(tokenizer.to_json(), encoding="utf-8")
    files = [TOKENIZER, *(tokens_file(folder, split).name for split in SPLITS)]
    meta = {
        "fingerprint": key,
        "dtype": token_dtype(tokenizer.vocab_size).name,
        "tokenizer": tokenizer.identity(),
        "splits": splits,
        "files": {name: (folder / name).stat().st_size for name in files},
    }
    (folder / META).write_text(json.dumps(meta, indent=1))


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
