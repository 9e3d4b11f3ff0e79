"""Training batches, a pure function of the seed and the number of the batch, and evaluation windows.

The random numbers behind them, and behind the draws of tasks, are a function of what they are for (`counter_hash`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from experiments.data.corpus import Split

# One constant a purpose, a first word of `counter_hash`, so that order, offset and noise are independent of each other.
_ORDER, _OFFSET = 1, 2
NOISE = 3
"""The purpose, a first word of `counter_hash`, of the noise keys that go with every training batch."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK_62 = np.uint64((1 << 62) - 1)
_MASK_64 = (1 << 64) - 1
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class Batches:
    """An endless stream of samples, cut into micro-batches.

    The split is read as a circle of N tokens. Epoch e (from 0) cuts it from an offset o_e = hash(seed, e) mod
    N into W = ⌊N / seq_len⌋ windows that do not overlap, and visits them in the order of hash(seed, e,
    window): every token is seen once an epoch, but for the N mod seq_len before o_e. Sample s is visit s mod
    W of epoch ⌊s / W⌋, and micro-batch i holds samples i·B … i·B+B−1, so that a change of batch size against
    accumulation leaves the order as it is. (Where the circle closes the next token is a separator, as at any
    document's end.)

    pack="stream": a window is one sequence. pack="document": windows are laid end to end in one row, and
    every window start and every separator starts a new sequence.
    """

    def __init__(
        self, split: Split, seq_len: int, batch_size: int, seed: int, pack: str = "stream", bos_id: int = 0
    ) -> None:
        self.tokens = np.asarray(split.tokens)
        if len(self.tokens) <= seq_len:
            raise ValueError(f"{len(self.tokens)} tokens are too few for windows of seq_len={seq_len}")
        self.seq_len, self.batch_size, self.seed = seq_len, batch_size, seed
        self.pack, self.bos_id = pack, bos_id
        self.windows_per_epoch = len(self.tokens) // seq_len
        self._starts_of: dict[int, np.ndarray] = {}

    def batch(self, i: int) -> dict[str, torch.Tensor]:
        """Micro-batch ``i`` on the CPU.

        tokens, targets: int64 `[B, T]`, targets one token ahead; with pack="document" `[1, B·T]`.
        noise_keys: int64 `[B]` in [0, 2^62), hash(seed, sample); with pack="document" one a sequence, `[N]`,
            where the start inside the window enters the hash too (`[B]` and `[N]` agree on whole windows).
        cu_seqlens: with pack="document" only, int32 `[N+1]`.
        """
        samples = np.arange(i * self.batch_size, (i + 1) * self.batch_size, dtype=np.int64)
        index = self._starts(samples)[:, None] + np.arange(self.seq_len + 1)
        rows = self.tokens.take(index, mode="wrap").astype(np.int64)
        tokens, targets = rows[:, :-1], rows[:, 1:]
        if self.pack == "stream":
            keys = counter_hash(NOISE, self.seed, samples, np.zeros_like(samples))
            return _tensors(tokens=tokens, targets=targets, noise_keys=keys)
        bounds = document_boundaries(tokens, self.bos_id)
        row, start = np.divmod(bounds[:-1].astype(np.int64), self.seq_len)
        return _tensors(
            tokens=tokens.reshape(1, -1),
            targets=targets.reshape(1, -1),
            noise_keys=counter_hash(NOISE, self.seed, samples[row], start),
            cu_seqlens=bounds,
        )

    def _starts(self, samples: np.ndarray) -> np.ndarray:
        epochs, visits = np.divmod(samples, self.windows_per_epoch)
        starts = np.empty_like(samples)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            starts[here] = self._epoch(int(epoch))[visits[here]]
        return starts

    def _epoch(self, epoch: int) -> np.ndarray:
        """First token of each visit of ``epoch``. Two epochs are kept: a batch may lie across a border."""
        if epoch not in self._starts_of:
            windows = np.arange(self.windows_per_epoch, dtype=np.int64)
            order = np.argsort(counter_hash(_ORDER, self.seed, epoch, windows), kind="stable")
            offset = int(counter_hash(_OFFSET, self.seed, epoch)[0]) % len(self.tokens)
            self._starts_of = dict([*self._starts_of.items(), (epoch, order * self.seq_len + offset)][-2:])
        return self._starts_of[epoch]


def document_boundaries(tokens: np.ndarray, bos_id: int) -> np.ndarray:
    """cu_seqlens, int32 `[N+1]`, of rows `[B, T]` laid end to end: rows and separators start sequences."""
    starts = tokens == bos_id
    starts[:, 0] = True
    return np.append(np.flatnonzero(starts), tokens.size).astype(np.int32)


def _tensors(**arrays: np.ndarray) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def eval_windows(split: Split, seq_len: int, stride: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """Yield (tokens int64 `[T']`, targets int64 `[T']`, first_scored) over a split of N tokens.

    Targets of position ``first_scored`` and later are to be scored; over all windows these are tokens 1 …
    N−1, each once and in order (token 0 is the first document's separator, which nothing predicts). Windows
    have T' = seq_len (N−1 if that is less). The first scores everything, each later one its last ``stride``
    targets, which so have at least seq_len − stride + 1 tokens of context; the last lies flush with the end
    and scores what is left. Raises ValueError unless 1 ≤ stride ≤ seq_len, and for a split of fewer than 2
    tokens.
    """
    if not 1 <= stride <= seq_len:
        raise ValueError(f"stride must be between 1 and seq_len={seq_len}, got {stride}")
    tokens = np.asarray(split.tokens)
    last = len(tokens) - 1
    if last < 1:
        raise ValueError(f"a split of {len(tokens)} tokens has nothing to score")
    done = 0
    while done < last:
        end = min(seq_len if done == 0 else done + stride, last)
        begin = max(0, end - seq_len)
        window = torch.from_numpy(tokens[begin : end + 1].astype(np.int64))
        yield window[:-1], window[1:], done - begin
        done = end


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


def extend_hash(state: int, words: np.ndarray) -> np.ndarray:
    """`counter_hash` of the words that led to a state and of each of these: int64 in [0, 2^62)."""
    return (_splitmix(words.astype(np.uint64) ^ np.uint64(state)) & _MASK_62).astype(np.int64)


def prefix_hashes(tokens: np.ndarray) -> np.ndarray:
    """`counter_hash` of tokens 0 … t at every place t: int64 [N, T] of [N, T]."""
    state, hashes = np.zeros(len(tokens), dtype=np.uint64), np.empty(tokens.shape, dtype=np.int64)
    for t in range(tokens.shape[1]):
        state = _splitmix(state ^ tokens[:, t].astype(np.uint64))
        hashes[:, t] = state & _MASK_62
    return hashes
