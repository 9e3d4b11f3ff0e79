"""Decode states as trees: what they weigh, how to fill them, and how sequences are taken out and put together.

A decode state is a tensor [B, ...] (of constant size), a cache (zoo.modules.caches, or anything else with `nbytes()`,
`fill(tokens)`, `select(index)`, `batch` and `appended`), or a dict, list, tuple or dataclass of such. B sequences of
one length share a cache; sequences of several lengths have a cache each, in a `Separate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


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
        f"a decode state holds {type(state).__name__}, whose bytes nobody can count; "
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
