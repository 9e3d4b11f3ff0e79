"""Refusing bad input before any work."""

from __future__ import annotations

from experiments.data.config import PACKS, DataConfig, cache_root
from experiments.data.contents import contents
from experiments.data.sources import SOURCES
from experiments.data.tokenization import TOKENIZERS
from zoo.errors import UserError, unknown


def check(cfg: DataConfig) -> None:
    """Refuse, with a UserError, everything about ``cfg`` that a person can get wrong. Writes nothing.

    Local text is read unless an earlier `fingerprint` has; the network never is: whether the hub can be
    reached shows in `fingerprint` and `prepare`.
    """
    check_settings(cfg)
    if SOURCES[cfg.name].at_hand:
        contents(cfg, keep=False)


def check_settings(cfg: DataConfig) -> None:
    """The part of `check` that reads no text."""
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
