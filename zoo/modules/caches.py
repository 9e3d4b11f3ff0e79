"""Caches for decoding, whose rows grow with the tokens; the bytes of any decode state, and filling one with zeros.

A decode state is a tensor (of constant size), a cache of this file, anything else with `nbytes()` and `fill(tokens)`,
or a dict, list, tuple or dataclass of such.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class RowCache:
    """One row per token in one or several tensors [..., T, width] of one length, in storage that doubles when full.

    storage: zeros [..., capacity, width], one tensor for each kind of row (keys and values, latents, an indexer's
    keys); window: only the last so many rows are stored (None: all). Appending costs O(1) amortised; reading is
    a view.
    """

    def __init__(self, *storage: Tensor, window: int | None = None) -> None:
        self.storage = storage
        self.window = window
        self.start = self.stop = 0  # rows in use
        self.appended = 0  # tokens so far, those that left the window included

    def append(self, *rows: Tensor) -> None:
        """Append a token's rows, [..., width] each, in the order of the storage."""
        self._advance(1)
        for storage, row in zip(self.storage, rows, strict=True):
            storage[..., self.stop - 1, :] = row.to(storage.dtype)

    def read(self) -> tuple[Tensor, ...]:
        """The stored rows, [..., n, width] for each tensor in storage, in order of time, as views."""
        return tuple(storage[..., self.start : self.stop, :] for storage in self.storage)

    def nbytes(self) -> int:
        """Bytes in storage."""
        return sum(storage.nbytes for storage in self.storage)

    def fill(self, tokens: int) -> None:
        """Fill an empty cache with rows of zeros; its storage is as large as after `tokens` calls of `append`."""
        while self.appended < tokens:
            self._advance(min(tokens - self.appended, max(1, self._capacity - self.stop)))

    @property
    def _capacity(self) -> int:
        return self.storage[0].shape[-2]

    def _advance(self, rows: int) -> None:
        """Take so many more rows of the storage into use; more than one only where there is room for all."""
        if self.stop == self._capacity:
            kept = self.stop - self.start
            self.storage = tuple(_grown(rows_in_use, 2 * kept + 16) for rows_in_use in self.read())
            self.start, self.stop = 0, kept
        self.stop += rows
        self.appended += rows
        if self.window is not None:
            self.start = max(self.start, self.stop - self.window)


class KVCache(RowCache):
    """Keys and values [B, H, T, width]; see RowCache."""

    def __init__(
        self, batch, heads, width, *, capacity=0, window=None, device=None, dtype=torch.float32
    ) -> None:
        rows = capacity if window is None else min(capacity, window)
        shape = (batch, heads, rows, width)
        storage = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        super().__init__(*storage, window=window)


class GroupedKVCache:
    """Keys and values in several lists per head, [B, H, G, rows, width], whose lengths may differ.

    One list per (head, timeline): a step appends to one list of each head and reads only that one. `lengths` is
    int64 [B, H, G].
    """

    def __init__(self, batch, heads, groups, width, *, rows=0, device=None, dtype=torch.float32) -> None:
        self.keys = torch.zeros(batch, heads, groups, rows, width, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.lengths = torch.zeros(batch, heads, groups, device=device, dtype=torch.int64)
        self.appended = 0

    def append(self, group: Tensor, key: Tensor, value: Tensor) -> None:
        """Append key and value [B, H, width] to the lists group [B, H]."""
        at = (*self._index(group), group)
        slot = self.lengths[at]
        self._make_room(int(slot.max()) + 1)
        self.keys[(*at, slot)] = key.to(self.keys.dtype)
        self.values[(*at, slot)] = value.to(self.values.dtype)
        self.lengths[at] += 1
        self.appended += 1

    def read(self, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values [B, H, n, width] of the lists group [B, H], and which of the n rows are filled [B, H, n]."""
        at = (*self._index(group), group)
        lengths = self.lengths[at]
        rows = int(lengths.max())
        filled = torch.arange(rows, device=group.device) < lengths[..., None]
        return self.keys[:, :, :, :rows][at], self.values[:, :, :, :rows][at], filled

    def length(self, group: Tensor) -> Tensor:
        """The number of rows in the lists group [B, H], int64 [B, H]."""
        return self.lengths[(*self._index(group), group)]

    def nbytes(self) -> int:
        """Bytes of keys, values and lengths in storage."""
        return self.keys.nbytes + self.values.nbytes + self.lengths.nbytes

    def fill(self, tokens: int) -> None:
        """Fill an empty cache with rows of zeros, as `tokens` tokens routed evenly over the lists would."""
        rows = -(-tokens // self.lengths.shape[-1])
        self._make_room(rows)
        self.lengths.fill_(rows)
        self.appended = tokens

    def _make_room(self, rows: int) -> None:
        while rows > self.keys.shape[3]:
            self.keys, self.values = (_grown(x, 2 * x.shape[3] + 16) for x in (self.keys, self.values))

    @staticmethod
    def _index(group: Tensor) -> tuple[Tensor, Tensor]:
        batch, heads = (torch.arange(n, device=group.device) for n in group.shape)
        return batch[:, None], heads[None]


def state_bytes(state: Any) -> int:
    """Bytes that a decode state holds. Raises TypeError for a part that is neither tensor nor cache."""
    return sum(part.nbytes if isinstance(part, Tensor) else part.nbytes() for part in _parts(state))


def fill_state(state: Any, tokens: int) -> None:
    """Fill the caches of an empty decode state with zeros, as many as after decoding `tokens` tokens.

    Tensors are of constant size and stay as they are. For timing a step far into a text without decoding the text.
    Raises TypeError for a part that is neither tensor nor cache.
    """
    for part in _parts(state):
        if not isinstance(part, Tensor):
            part.fill(tokens)


def _parts(state: Any) -> Iterator[Any]:
    """The tensors and caches of a state."""
    if isinstance(state, Tensor) or (hasattr(state, "nbytes") and hasattr(state, "fill")):
        yield state
    elif isinstance(state, dict | list | tuple):
        for part in state.values() if isinstance(state, dict) else state:
            yield from _parts(part)
    elif dataclasses.is_dataclass(state):
        for field in dataclasses.fields(state):
            yield from _parts(getattr(state, field.name))
    elif not (state is None or isinstance(state, int | float)):
        # Passed over, an unknown state would make a mixer look free, and decoding with it faster than it is.
        raise TypeError(
            f"a decode state holds {type(state).__name__}, whose bytes nobody can count; "
            "give it nbytes() and fill(tokens)"
        )


def _grown(x: Tensor, rows: int) -> Tensor:
    """A copy of x [..., n, width] with `rows` rows, zeros after the first n."""
    out = x.new_zeros(*x.shape[:-2], rows, x.shape[-1])
    out[..., : x.shape[-2], :] = x
    return out
