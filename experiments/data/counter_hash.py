"""Random numbers as a function of what they are for: the order of data, noise, the draws of tasks."""

from __future__ import annotations

import numpy as np

NOISE = 3
"""The purpose, a first word of `counter_hash`, of the noise keys that go with every training batch."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK_62 = np.uint64((1 << 62) - 1)
_MASK_64 = (1 << 64) - 1
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def counter_hash(*words: int | np.ndarray) -> np.ndarray:
    """Hash integers (broadcast against each other) to int64 in [0, 2^62), the same on every machine.

    h ← splitmix(h ⊕ wᵢ) over the words in turn. NumPy's own generators may change their stream between
    versions; this cannot, so a run's data order and noise do not depend on the NumPy it ran with.
    """
    state = np.zeros(1, dtype=np.uint64)
    for word in words:
        if isinstance(word, int):
            word = np.array([word & _MASK_64], dtype=np.uint64)
        state = _splitmix(state ^ word.astype(np.uint64))
    return (state & _MASK_62).astype(np.int64)


def _splitmix(x: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014), a bijection of 64-bit integers."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FACTORS[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_FACTORS[1])
    return x ^ (x >> np.uint64(31))


def state_after(*words: int) -> int:
    """The state of `counter_hash` after these words, in Python's integers: quicker than arrays of one element."""
    state = 0
    for word in words:
        x = ((state ^ (word & _MASK_64)) + int(_GOLDEN)) & _MASK_64
        x = ((x ^ (x >> 30)) * _FACTORS[0]) & _MASK_64
        x = ((x ^ (x >> 27)) * _FACTORS[1]) & _MASK_64
        state = x ^ (x >> 31)
    return state


def going_on(state: int, words: np.ndarray) -> np.ndarray:
    """`counter_hash` of the words that led to a state and of each of these: int64 in [0, 2^62)."""
    return (_splitmix(words.astype(np.uint64) ^ np.uint64(state)) & _MASK_62).astype(np.int64)


def prefix_hashes(tokens: np.ndarray) -> np.ndarray:
    """`counter_hash` of tokens 0 … t at every place t: int64 [N, T] of [N, T]."""
    state, found = np.zeros(len(tokens), dtype=np.uint64), np.empty(tokens.shape, dtype=np.int64)
    for t in range(tokens.shape[1]):
        state = _splitmix(state ^ tokens[:, t].astype(np.uint64))
        found[:, t] = state & _MASK_62
    return found
