"""Decode-time memory for attention: keys and values in storage that doubles when it is full."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values [B, H, T, width] of one list a head, all of the same length.

    Appending costs O(1) amortised; reading is a view. With a window only the last `window` rows are kept.
    """

    def __init__(self, batch, heads, width, *, capacity=0, device=None, dtype=torch.float32) -> None:
        self.keys = torch.zeros(batch, heads, capacity, width, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.start = self.stop = self.appended = 0  # rows in use; how many tokens were ever appended

    def append(self, key: Tensor, value: Tensor, window: int | None = None) -> None:
        """Append key and value [B, H, width]; keep only the last `window` rows if given."""
        if self.stop == self.keys.shape[2]:
            self._make_room()
        self.keys[:, :, self.stop] = key.to(self.keys.dtype)
        self.values[:, :, self.stop] = value.to(self.values.dtype)
        self.stop += 1
        self.appended += 1
        if window is not None:
            self.start = max(self.start, self.stop - window)

    def read(self) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, n, width] in order of time, as views."""
        return self.keys[:, :, self.start : self.stop], self.values[:, :, self.start : self.stop]

    def nbytes(self) -> int:
        """Bytes of keys and values in storage."""
        return self.keys.nbytes + self.values.nbytes

    def _make_room(self) -> None:
        """Move the rows in use to the front of storage with at least as much room again behind them."""
        rows = self.stop - self.start
        self.keys, self.values = (
            _grown(x[:, :, self.start : self.stop], 2 * rows + 16) for x in (self.keys, self.values)
        )
        self.start, self.stop = 0, rows


class RowCache:
    """One row [B, width] a token, in storage [B, T, width] that doubles when it is full."""

    def __init__(self, batch, width, *, capacity=0, device=None, dtype=torch.float32) -> None:
        self.rows = torch.zeros(batch, capacity, width, device=device, dtype=dtype)
        self.length = 0

    def append(self, row: Tensor) -> None:
        """Append one row [B, width]."""
        if self.length == self.rows.shape[1]:
            self.rows = _grown(self.rows, 2 * self.length + 16)
        self.rows[:, self.length] = row.to(self.rows.dtype)
        self.length += 1

    def read(self) -> Tensor:
        """The rows of all tokens [B, n, width], as a view."""
        return self.rows[:, : self.length]

    def nbytes(self) -> int:
        """Bytes in storage."""
        return self.rows.nbytes


class GroupedKVCache:
    """Keys and values of several lists a head, [B, H, G, rows, width], whose lengths may differ.

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
        if int(slot.max()) >= self.keys.shape[3]:
            self.keys, self.values = (_grown(x, 2 * x.shape[3] + 16) for x in (self.keys, self.values))
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
        """How many rows the lists group [B, H] hold, int64 [B, H]."""
        return self.lengths[(*self._index(group), group)]

    def nbytes(self) -> int:
        """Bytes of keys, values and lengths in storage."""
        return self.keys.nbytes + self.values.nbytes + self.lengths.nbytes

    @staticmethod
    def _index(group: Tensor) -> tuple[Tensor, Tensor]:
        batch, heads = group.shape
        return torch.arange(batch, device=group.device)[:, None], torch.arange(heads, device=group.device)[
            None
        ]


def _grown(x: Tensor, rows: int) -> Tensor:
    """A copy of x [..., n, width] with `rows` rows, zeros behind the n."""
    out = x.new_zeros(*x.shape[:-2], rows, x.shape[-1])
    out[..., : x.shape[-2], :] = x
    return out
