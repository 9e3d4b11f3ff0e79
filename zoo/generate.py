"""Sampling text from a model, one token at a time through its decode state."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.errors import UserError
from zoo.model import LanguageModel


def generate(
    model: LanguageModel,
    prompt: Tensor,
    n_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> Iterator[Tensor]:
    """Yield n_tokens sampled tokens, int64 [B] each, after a prompt int64 [B, T] with T ≥ 1.

    temperature: 0 takes the most likely token; top_k: sample among the k most likely; top_p: among the fewest tokens
    whose probabilities add up to at least p. Draws depend on `seed` alone, not on torch's global generator.
    Raises UserError for values out of range.
    """
    _check(prompt, temperature, top_k, top_p)
    training = model.training
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    try:
        state = model.init_state(prompt.shape[0], capacity=prompt.shape[1] + n_tokens)
        for token in prompt.unbind(1):
            logits, state = model.step(token, state)
        for i in range(n_tokens):
            token = sample(logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
            yield token
            if i + 1 < n_tokens:
                logits, state = model.step(token, state)
    finally:
        model.train(training)


def sample(
    logits: Tensor, *, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator
) -> Tensor:
    """Draw one token a row from logits [B, V]: int64 [B]. The draw happens on the CPU, the same on every device."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.float().cpu() / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, -1).values[:, -1:], -torch.inf)
    if top_p is not None:
        logits = _nucleus(logits, top_p)
    return torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)[:, 0].to(logits.device)


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens whose probabilities add up to top_p."""
    ordered, index = logits.sort(-1, descending=True)
    before = torch.softmax(ordered, -1).cumsum(-1) - torch.softmax(ordered, -1)
    return torch.full_like(logits, -torch.inf).scatter(-1, index, ordered.masked_fill(before >= top_p, -torch.inf))


def _check(prompt: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if prompt.dim() != 2 or prompt.shape[1] == 0:
        raise UserError(f"a prompt is int64 [batch, tokens] with at least one token, not {tuple(prompt.shape)}")
    if temperature < 0:
        raise UserError(f"temperature={temperature} must be 0 (most likely token) or above")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k={top_k} must be at least 1")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p={top_p} must be above 0 and at most 1")
