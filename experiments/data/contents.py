"""What the text of each split is before it is tokenised: hash, bytes, documents; remembered between calls."""

from __future__ import annotations

import hashlib

from experiments.data.cache import recall, remember
from experiments.data.config import DataConfig, cache_root
from experiments.data.hashing import content_hash
from experiments.data.sources import SOURCES, SPLITS
from zoo.errors import UserError

_VERSION = 1
Contents = dict[str, dict]


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
