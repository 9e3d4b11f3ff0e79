"""Decode states of a given length, made without decoding: for timing a step after a long context."""

from __future__ import annotations

import torch

from zoo.model import DecodeState, LanguageModel
from zoo.modules.caches import fill_state


def state_after(model: LanguageModel, tokens: int, dtype: torch.dtype) -> DecodeState:
    """The decode state of one sequence after `tokens` tokens, whose caches are full of zeros.

    Raises TypeError where a mixer's state holds something that cannot be filled.
    """
    options = {"capacity": tokens, "device": model.embedding.weight.device, "dtype": dtype}
    states = [layer.mixer.init_state(1, **options) for layer in model.layers]
    fill_state(states, tokens)
    return DecodeState(states)
