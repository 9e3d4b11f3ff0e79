"""Decode states as they stand after so many tokens, without decoding them: for timing a step far into a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from zoo.model import DecodeState, LanguageModel
from zoo.modules.states import fill_state


def state_after(
    model: LanguageModel, tokens: int, dtype: torch.dtype, batch: int = 1, room: int = 0
) -> DecodeState:
    """The decode state of `batch` sequences after `tokens` tokens, whose caches are full of zeros.

    room: tokens to make room for beside those. The zeros stand in memory of their own, which takes as long to read
    as keys and values do.
    Raises TypeError where a mixer's state holds something that cannot be filled.
    """
    state = _empty(model, batch, tokens + room, model.embedding.weight.device, dtype)
    fill_state(state.layers, tokens)
    for x in tensors_in(state.layers):
        if not x.is_meta and x.dtype != torch.bool:
            x.add_(0)  # fresh zeros are all one page of memory, until they are written to
    return state


def state_bytes(model: LanguageModel, tokens: int, dtype: torch.dtype, batch: int = 1) -> int:
    """Bytes of the decode state of `batch` sequences after `tokens` tokens; nothing is stored."""
    state = _empty(model, batch, tokens, torch.device("meta"), dtype)
    return sum(layer.mixer.state_bytes(part) for layer, part in zip(model.layers, state.layers, strict=True))


def tensors_in(state: Any) -> Iterator[Tensor]:
    """The tensors in containers and in the attributes of objects, at any depth."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, list | tuple | dict):
        for part in state.values() if isinstance(state, dict) else state:
            yield from tensors_in(part)
    elif hasattr(state, "__dict__") and not isinstance(state, type):
        yield from tensors_in(vars(state))


def _empty(
    model: LanguageModel, batch: int, capacity: int, device: torch.device, dtype: torch.dtype
) -> DecodeState:
    options = {"capacity": capacity, "device": device, "dtype": dtype}
    return DecodeState([layer.mixer.init_state(batch, **options) for layer in model.layers])
