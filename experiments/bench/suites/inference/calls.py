"""The calls that are timed: reading a prompt, a forward pass over it, and steps of decoding after it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.bench import decoding
from experiments.bench.hugging_face.peer import Peer
from zoo.generate import prefill
from zoo.model import DecodeState, LanguageModel

Call = Callable[[], object]

STEPS = 4
"""Steps of decoding that are timed together, as they follow each other."""
LAST = 64
"""Tokens at the end of a context that are really read, so that recurrent states hold something."""


def prefill_call(model: LanguageModel | Peer, tokens: Tensor) -> Call:
    """Reading prompts int64 [B, T]."""
    if isinstance(model, Peer):
        return lambda: model.prefill(tokens)
    return lambda: prefill(model, list(tokens))


def forward_call(model: LanguageModel, tokens: Tensor) -> Call:
    """A forward pass without gradients over int64 [B, T], with the logits of all tokens."""

    @torch.no_grad()
    def call() -> None:
        model(tokens)

    return call


def decode_call(model: LanguageModel | Peer, tokens: Tensor, dtype: torch.dtype, rounds: int) -> Call:
    """STEPS steps after a context as long as tokens, int64 [B, T]; the context grows by them, at most `rounds` times.

    dtype: of our decode state; a cache of transformers has that of its keys.
    """
    batch, length = tokens.shape
    if isinstance(model, Peer):
        cache = model.cache_after(length, batch)
        return lambda: [model.step(tokens[:, -1], cache) for _ in range(STEPS)]
    state = _state_after(model, tokens, dtype, room=STEPS * rounds)

    def call() -> None:
        nonlocal state
        for _ in range(STEPS):
            _, state = model.step(tokens[:, -1], state)

    return call


def _state_after(model: LanguageModel, tokens: Tensor, dtype: torch.dtype, room: int) -> DecodeState:
    """The state after a context of zeros in caches that ends with real tokens."""
    batch, length = tokens.shape
    last = min(LAST, length // 2)
    state = decoding.state_after(model, length - last, dtype, batch, room=last + room)
    return model.extend(tokens[:, length - last :], state)[1] if last else state
