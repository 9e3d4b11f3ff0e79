"""A decode state as plain tensors, so that two states can be compared whatever room their caches have."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from zoo.modules import GroupedKVCache, RowCache


def state_rows(state: Any, name: str = "state") -> Iterator[tuple[str, Tensor]]:
    """Name and values of every tensor, of every cache's rows in use and of its number of tokens."""
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, RowCache):
        yield f"{name}.appended", torch.tensor(float(state.appended))
        yield from ((f"{name}[{i}]", rows) for i, rows in enumerate(state.read()))
    elif isinstance(state, GroupedKVCache):
        yield f"{name}.lengths", state.lengths.double()
        filled = torch.arange(state.keys.shape[3]) < state.lengths[..., None]
        yield from ((f"{name}.{part}", getattr(state, part)[filled]) for part in ("keys", "values"))
    elif dataclasses.is_dataclass(state):
        for field in dataclasses.fields(state):
            yield from state_rows(getattr(state, field.name), f"{name}.{field.name}")
    elif isinstance(state, dict | list | tuple):
        parts = state.items() if isinstance(state, dict) else enumerate(state)
        for key, part in parts:
            yield from state_rows(part, f"{name}[{key}]")
