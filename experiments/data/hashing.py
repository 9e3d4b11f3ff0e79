"""Hashes: SHA-256 names for content, and a counter-based 62-bit hash for order and noise."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK_62 = np.uint64((1 << 62) - 1)


def content_hash(value: Any, digits: int = 32) -> str:
    """First ``digits`` hexadecimal digits of the SHA-256 of ``value`` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _splitmix(x: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64-bit integers."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def counter_hash(*words: int | np.ndarray) -> np.ndarray:
    """Hash integers (broadcast against each other) to int64 in [0, 2^62), the same on every machine.

    h ← splitmix(h ⊕ wᵢ) over the words in turn. NumPy's own generators may change their stream between
    versions; this cannot, so a run's data order and noise do not depend on the NumPy it ran with.
    """
    state = np.zeros(1, dtype=np.uint64)
    for word in words:
        if isinstance(word, int):
            word = np.array([word & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
        state = _splitmix(state ^ word.astype(np.uint64))
    return (state & _MASK_62).astype(np.int64)
