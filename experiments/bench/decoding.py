"""Decode states as they stand after so many tokens, without decoding them: for timing a step far into a text."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from zoo.cache import GroupedKVCache, KVCache, RowCache
from zoo.model import DecodeState, LanguageModel


def state_after(model: LanguageModel, tokens: int, dtype: torch.dtype) -> DecodeState:
    """The decode state of one sequence with room for `tokens` and all of it in use; what it remembers is zeros."""
    options = {"capacity": tokens, "device": model.embedding.weight.device, "dtype": dtype}
    states = [layer.mixer.init_state(1, **options) for layer in model.layers]
    for state in states:
        _use(state, tokens)
    return DecodeState(states)


def _use(state: Any, tokens: int) -> None:
    """Declare the storage of every cache in a state used; recurrent states know no length."""
    if isinstance(state, KVCache):
        state.stop, state.appended = state.keys.shape[2], tokens
    elif isinstance(state, RowCache):
        state.length = tokens
    elif isinstance(state, GroupedKVCache):  # as balanced routing would have filled it
        state.lengths.fill_(state.keys.shape[3])
        state.appended = tokens
    elif dataclasses.is_dataclass(state):
        for field in dataclasses.fields(state):
            _use(getattr(state, field.name), tokens)
    elif isinstance(state, list | tuple):
        for part in state:
            _use(part, tokens)
