"""Memory for decoding: caches whose rows grow with the tokens, and decode states, which are trees of these."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class RowCache:
    """A row a token of one tensor or several [B, ..., T, width], all of one length, in storage that doubles when full.

    storage: zeros [B, ..., capacity, width], one tensor for each kind of row (keys and values, latents, an indexer's
    keys); window: only so many rows are kept, the last ones (None: all). Appending costs O(1) amortised; reading is
    a view.
    """

    def __init__(self, *storage: Tensor, window: int | None = None) -> None:
        self.storage = storage
        self.window = window
        self.start = self.stop = 0  # rows in use
        self.appended = 0  # tokens so far, those that left the window included

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.storage[0].shape[0]

    def append(self, *rows: Tensor) -> tuple[Tensor, ...]:
        """Append T tokens' rows, [B, ..., T, width] each, in the order of the storage.

        Returns the rows that these tokens may read, up to their own: with a window the last window − 1 + T, else all.
        """
        tokens = rows[0].shape[-2]
        if self.window is not None and tokens > 1:
            return self._append_past_window(tokens, rows)
        self._advance(tokens)
        for storage, row in zip(self.storage, rows, strict=True):
            storage[..., self.stop - tokens : self.stop, :] = row
        return self.read()

    def read(self) -> tuple[Tensor, ...]:
        """The rows kept, [B, ..., n, width] for each tensor in storage, in order of time, as views."""
        return tuple(storage[..., self.start : self.stop, :] for storage in self.storage)

    def select(self, index: Tensor) -> RowCache:
        """A cache of the sequences index [n] alone, with copies of their rows."""
        index = index.to(self.storage[0].device)
        return self._with(tuple(storage[index] for storage in self.storage))

    def join(self, caches: Sequence[RowCache]) -> RowCache:
        """A cache of the sequences of several caches, this one among them, all of as many tokens."""
        rows = max(cache._capacity for cache in caches)
        parts = (
            [_zero_padded(x, rows - (cache.stop - cache.start)) for x in cache.read()] for cache in caches
        )
        joined = self._with(tuple(torch.cat(part) for part in zip(*parts, strict=True)))
        joined.start, joined.stop = 0, self.stop - self.start
        return joined

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

    def _with(self, storage: tuple[Tensor, ...]) -> RowCache:
        out = RowCache(*storage, window=self.window)
        out.start, out.stop, out.appended = self.start, self.stop, self.appended
        return out

    def _advance(self, rows: int) -> None:
        """Take so many more rows of the storage into use; more than one only without a window."""
        if self.stop + rows > self._capacity:
            kept = self.stop - self.start
            self.storage = tuple(_zero_padded(x, kept + max(rows, 16)) for x in self.read())
            self.start, self.stop = 0, kept
        self.stop += rows
        self.appended += rows
        if self.window is not None:
            self.start = max(self.start, self.stop - self.window)

    def _append_past_window(self, tokens: int, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`append` of several tokens to a window: the storage keeps the last rows of those that they read."""
        old = min(self.stop - self.start, self.window - 1)
        seen = tuple(
            torch.cat([x[..., x.shape[-2] - old :, :], row.to(x.dtype)], -2)
            for x, row in zip(self.read(), rows, strict=True)
        )
        kept = min(self.window, old + tokens)
        if kept > self._capacity:
            self.storage = tuple(_zero_padded(x[..., :0, :], kept) for x in self.storage)
        for storage, x in zip(self.storage, seen, strict=True):
            storage[..., :kept, :] = x[..., x.shape[-2] - kept :, :]
        self.start, self.stop = 0, kept
        self.appended += tokens
        return seen


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

    One list per (head, timeline): a token is appended to one list of each head. `lengths` is int64 [B, H, G], and
    `longest` the rows that any list has at most: by it a step on a GPU knows what to read and does not wait for it.
    """

    def __init__(self, batch, heads, groups, width, *, rows=0, device=None, dtype=torch.float32) -> None:
        self.keys = torch.zeros(batch, heads, groups, rows, width, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.lengths = torch.zeros(batch, heads, groups, device=device, dtype=torch.int64)
        self.appended = self.longest = 0

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.keys.shape[0]

    def places(self, group: Tensor) -> Tensor:
        """The rows that the next T tokens get in their lists group [B, T, H], int64 [B, T, H]."""
        if group.shape[1] == 1:
            return self.lengths.gather(2, group.transpose(1, 2)).transpose(1, 2)
        chosen = F.one_hot(group, self.lengths.shape[-1])
        rows = self.lengths[:, None] + chosen.cumsum(1) - 1
        return rows.gather(3, group[..., None])[..., 0]

    def append(self, group: Tensor, keys: Tensor, values: Tensor) -> None:
        """Append T tokens' keys and values [B, T, H, width] to their lists group [B, T, H]."""
        row = self.places(group)
        self.longest += group.shape[1]
        if not torch.compiler.is_compiling() and self.longest > self.keys.shape[3]:
            self.longest = int(torch.maximum(self.lengths.max(), row.max() + 1))
        self._make_room(self.longest)
        at = (*self._index(group), group, row)
        self.keys[at] = keys.to(self.keys.dtype)
        self.values[at] = values.to(self.values.dtype)
        self.lengths.scatter_add_(2, group.transpose(1, 2), torch.ones_like(group).transpose(1, 2))
        self.appended += group.shape[1]

    def read(self, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values [B, H, n, width] of the lists group [B, H], and which of the n rows are filled [B, H, n]."""
        at = (*(axis[:, 0] for axis in self._index(group[:, None])), group)
        lengths = self.lengths[at]
        waits = lengths.device.type != "cpu" or torch.compiler.is_compiling()
        rows = self.longest if waits else int(lengths.max())
        filled = torch.arange(rows, device=group.device) < lengths[..., None]
        return self.keys[:, :, :, :rows][at], self.values[:, :, :, :rows][at], filled

    def select(self, index: Tensor) -> GroupedKVCache:
        """A cache of the sequences index [n] alone, with copies of their rows."""
        index = index.to(self.keys.device)
        return self._with(self.keys[index], self.values[index], self.lengths[index])

    def join(self, caches: Sequence[GroupedKVCache]) -> GroupedKVCache:
        """A cache of the sequences of several caches, this one among them, all of as many tokens."""
        rows = max(cache.keys.shape[3] for cache in caches)
        keys, values = (
            torch.cat([F.pad(x, (0, 0, 0, rows - x.shape[3])) for x in part])
            for part in ([c.keys for c in caches], [c.values for c in caches])
        )
        return self._with(keys, values, torch.cat([cache.lengths for cache in caches]))

    def nbytes(self) -> int:
        """Bytes of keys, values and lengths in storage."""
        return self.keys.nbytes + self.values.nbytes + self.lengths.nbytes

    def fill(self, tokens: int) -> None:
        """Fill an empty cache with rows of zeros, as `tokens` tokens routed evenly over the lists would."""
        rows = -(-tokens // self.lengths.shape[-1])
        self._make_room(rows)
        self.lengths.fill_(rows)
        self.appended, self.longest = tokens, rows

    def _with(self, keys: Tensor, values: Tensor, lengths: Tensor) -> GroupedKVCache:
        out = GroupedKVCache.__new__(GroupedKVCache)
        out.keys, out.values, out.lengths, out.appended = keys, values, lengths, self.appended
        out.longest = keys.shape[3]
        return out

    def _make_room(self, rows: int) -> None:
        if rows > self.keys.shape[3]:
            more = max(rows, 2 * self.keys.shape[3] + 16)
            self.keys, self.values = (
                F.pad(x, (0, 0, 0, more - x.shape[3])) for x in (self.keys, self.values)
            )

    @staticmethod
    def _index(group: Tensor) -> tuple[Tensor, Tensor]:
        """Sequence and head of group [B, T, H], to index with."""
        batch, _, heads = (torch.arange(n, device=group.device) for n in group.shape)
        return batch[:, None, None], heads[None, None]


def _zero_padded(x: Tensor, more: int) -> Tensor:
    """A copy of x [..., n, width] with `more` rows of zeros behind."""
    return F.pad(x, (0, 0, 0, more))


# Decode states as trees: their bytes, filling them, taking sequences out and putting them together.
#
# A decode state is a tensor [B, ...] of constant size, a cache (one of these, or anything with `nbytes()`,
# `fill(tokens)`, `select(index)`, `batch` and `appended`), or a dict, list, tuple or dataclass of such. B sequences
# of one length share a cache; sequences of several lengths have a cache each, in a `Separate`.


class Separate:
    """The caches of sequences of different lengths: one cache of batch 1 a sequence."""

    def __init__(self, caches: Sequence[Any]) -> None:
        self.caches = list(caches)

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return len(self.caches)

    @property
    def appended(self) -> list[int]:
        """The tokens of every sequence so far."""
        return [cache.appended for cache in self.caches]

    def select(self, index: Tensor) -> Separate:
        """The caches of the sequences index [n], the same objects."""
        return Separate([self.caches[i] for i in index.tolist()])

    def nbytes(self) -> int:
        """Bytes in storage."""
        return sum(cache.nbytes() for cache in self.caches)

    def fill(self, tokens: int) -> None:
        """Make every empty cache one of `tokens` tokens."""
        for cache in self.caches:
            cache.fill(tokens)


def positions(cache: Any, tokens: int, device: Any) -> Tensor:
    """The positions of the next `tokens` tokens, int64 [1, T], or [B, T] where lengths differ."""
    if isinstance(cache, Separate):
        begin = torch.tensor(cache.appended, device=device)
        return begin[:, None] + torch.arange(tokens, device=device)
    return torch.arange(cache.appended, cache.appended + tokens, device=device)[None]


def by_sequence(read: Callable[..., Tensor], cache: Any, *tensors: Tensor | None) -> Tensor:
    """read(cache, *tensors), tensors [B, ...]; where sequences have a cache each, one sequence after another."""
    if not isinstance(cache, Separate):
        return read(cache, *tensors)
    parts = [[None if x is None else x[i : i + 1] for x in tensors] for i in range(cache.batch)]
    return torch.cat([read(one, *part) for one, part in zip(cache.caches, parts, strict=True)])


def join_states(states: Sequence[Any]) -> Any:
    """One state of all sequences of several states of the same kind, in their order."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.cat(list(states))
    if _is_cache(first):
        return _join_caches(states)
    return _rebuilt(first, [join_states(parts) for parts in zip(*map(_children, states), strict=True)])


def select_sequences(state: Any, index: Tensor) -> Any:
    """The state of the sequences index, int64 [n], alone: copies, or the caches themselves where they are separate."""
    if isinstance(state, Tensor) or _is_cache(state):
        return state[index] if isinstance(state, Tensor) else state.select(index)
    return _rebuilt(state, [select_sequences(part, index) for part in _children(state)])


def state_bytes(state: Any) -> int:
    """Bytes that a decode state holds. Raises TypeError for a part that is neither tensor nor cache."""
    return sum(part.nbytes if isinstance(part, Tensor) else part.nbytes() for part in _parts(state))


def fill_state(state: Any, tokens: int) -> None:
    """Fill the caches of an empty decode state as if `tokens` tokens had been decoded; what they hold is zeros.

    Tensors know no length and stay as they are. For timing a step far into a text without decoding the text.
    Raises TypeError for a part that is neither tensor nor cache.
    """
    for part in _parts(state):
        if not isinstance(part, Tensor):
            part.fill(tokens)


def _join_caches(caches: Sequence[Any]) -> Any:
    lengths = [cache.appended for cache in caches]
    if all(isinstance(n, int) and n == lengths[0] for n in lengths) and hasattr(caches[0], "join"):
        return caches[0].join(caches)
    return Separate([one for cache in caches for one in _split_by_sequence(cache)])


def _split_by_sequence(cache: Any) -> list[Any]:
    """A cache of batch 1 for every sequence of a cache."""
    if isinstance(cache, Separate):
        return cache.caches
    return [cache] if cache.batch == 1 else [cache.select(torch.tensor([i])) for i in range(cache.batch)]


def _is_cache(state: Any) -> bool:
    return hasattr(state, "nbytes") and hasattr(state, "fill") and not isinstance(state, Tensor)


def _parts(state: Any) -> Iterator[Any]:
    """The tensors and caches of a state."""
    if isinstance(state, Tensor) or _is_cache(state):
        yield state
    else:
        for part in _children(state):
            yield from _parts(part)


def _children(state: Any) -> list[Any]:
    """The parts of a container, in order; none of a number or None. Raises TypeError for any other object."""
    if isinstance(state, dict):
        return list(state.values())
    if isinstance(state, list | tuple):
        return list(state)
    if dataclasses.is_dataclass(state):
        return [getattr(state, field.name) for field in dataclasses.fields(state)]
    if state is None or isinstance(state, int | float):
        return []
    # Passed over, an unknown state would make a mixer look free, and decoding with it faster than it is.
    raise TypeError(
        f"a decode state holds {type(state).__name__}, whose bytes cannot be counted; "
        "give it nbytes(), fill(tokens), select(index), batch and appended"
    )


def _rebuilt(like: Any, children: list[Any]) -> Any:
    """A container like this one with other parts; a number or None itself."""
    if isinstance(like, dict):
        return dict(zip(like, children, strict=True))
    if isinstance(like, list | tuple):
        return type(like)(*children) if hasattr(like, "_fields") else type(like)(children)
    if dataclasses.is_dataclass(like):
        names = [field.name for field in dataclasses.fields(like)]
        return dataclasses.replace(like, **dict(zip(names, children, strict=True)))
    return like
