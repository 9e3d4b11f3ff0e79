"""The text of each split before it is tokenised: checks, hash, bytes, documents; remembered between calls."""

from __future__ import annotations

import hashlib

from experiments.data.cache import recall, remember
from experiments.data.config import PACKS, DataConfig, cache_root
from experiments.data.sources import SOURCES, SPLITS
from experiments.data.tokenization import TOKENIZERS
from experiments.hashing import content_hash
from zoo.errors import UserError, unknown

_VERSION = 1
Contents = dict[str, dict]


def check(cfg: DataConfig) -> None:
    """Refuse, with a UserError, everything about ``cfg`` that a person can get wrong. Writes nothing.

    Local text is read unless an earlier `fingerprint` has; the network never is: whether the hub can be
    reached shows in `fingerprint` and `prepare`.
    """
    check_settings(cfg)
    if SOURCES[cfg.name].at_hand:
        contents(cfg, keep=False)


def check_settings(cfg: DataConfig) -> None:
    """Raise UserError for settings that cannot work; reads no text."""
    for kind, name, known in (
        ("data source", cfg.name, SOURCES),
        ("tokenizer", cfg.tokenizer, TOKENIZERS),
        ("packing", cfg.pack, PACKS),
    ):
        if name not in known:
            raise unknown(kind, name, known)
    for key in ("seq_len", "batch_size"):
        if getattr(cfg, key) < 1:
            raise UserError(f"data.{key} must be at least 1, got {getattr(cfg, key)}")
    cache = cache_root(cfg)
    if cache.exists() and not cache.is_dir():
        raise UserError(f"the cache folder {cache} is a file; give a folder with data.cache_dir=...")
    TOKENIZERS[cfg.tokenizer].check(cfg)
    SOURCES[cfg.name].check(cfg)


def contents(cfg: DataConfig, keep: bool = True) -> Contents:
    """For each split {"digest": SHA-256 of its documents in order, "bytes", "documents"}.

    What an earlier call read is used as long as the files have not changed. keep: write that memory (to the
    cache). Raises UserError for text that cannot be read, and for a text too small for ``cfg.seq_len``.
    """
    cache, stamp = cache_root(cfg), SOURCES[cfg.name].stamp(cfg)
    memory = cache / "contents" / f"{content_hash([_VERSION, cfg.name, stamp])}.json"
    found = recall(memory) if stamp is not None else None
    if found is None:
        found = {split: _read(cfg, split) for split in SPLITS}
        if stamp is not None and keep:
            remember(memory, found)
    # No tokenizer here makes more tokens than bytes, and one separator a document.
    check_sizes(cfg, {split: part["bytes"] + part["documents"] for split, part in found.items()}, "bytes")
    return found


def check_sizes(cfg: DataConfig, sizes: dict[str, int], unit: str) -> None:
    """Raise UserError unless training fills a window and the evaluation splits have something to score."""
    needed = cfg.seq_len + 1
    if sizes["train"] < needed or min(sizes.values()) < 2:
        raise UserError(
            f"the text is too small: training has {sizes['train']} {unit}, validation {sizes['validation']}, "
            f"test {sizes['test']} (document separators counted); data.seq_len={cfg.seq_len} needs at least "
            f"{needed} tokens of training text and some text in each split: give more text or a smaller "
            "data.seq_len"
        )


def _read(cfg: DataConfig, split: str) -> dict:
    digest, size, documents = hashlib.sha256(), 0, 0
    for document in SOURCES[cfg.name].documents(cfg, split, cache_root(cfg)):
        encoded = document.text.encode()
        digest.update(f"{len(encoded)} {document.rows}\n".encode() + encoded)
        size += len(encoded)
        documents += 1
    return {"digest": digest.hexdigest(), "bytes": size, "documents": documents}
