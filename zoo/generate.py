"""Sampling text from a model, one token at a time through its decode state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    """An iterator over n_tokens sampled tokens, int64 [B] each, after a prompt int64 [B, T] with T ≥ 1.

    temperature: 0 takes the most likely token; top_k: sample among the k most likely; top_p: among the fewest
    tokens whose probabilities add up to at least p. Draws depend on `seed` alone, not on torch's global
    generator. Raises UserError for values out of range, at the call and not at the first token, and at a token whose
    scores are NaN.
    """
    _check_prompt(model, prompt, n_tokens)
    _check_sampling(temperature, top_k, top_p)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    return _generate(model, prompt, n_tokens, options, torch.Generator().manual_seed(seed))


def _generate(
    model: LanguageModel, prompt: Tensor, n_tokens: int, options: dict[str, Any], generator: torch.Generator
) -> Iterator[Tensor]:
    training = model.training
    model.eval()
    try:
        state = model.init_state(prompt.shape[0], capacity=prompt.shape[1] + n_tokens)
        for token in prompt.unbind(1):
            logits, state = model.step(token, state)
        for i in range(n_tokens):
            token = sample(logits, generator=generator, **options)
            yield token
            if i + 1 < n_tokens:
                logits, state = model.step(token, state)
    finally:
        model.train(training)


def sample(
    logits: Tensor, *, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator
) -> Tensor:
    """Draw one token per row of logits [B, V]: int64 [B] on the device of the logits.

    The draw itself happens on the CPU, the same for every device.
    """
    if logits.isnan().any():
        raise UserError("the model's scores of the next token are not numbers (NaN): its weights are damaged")
    if temperature == 0:
        return logits.argmax(-1)
    device, logits = logits.device, logits.double().cpu()
    # Largest first: a temperature near 0 would otherwise divide to infinity.
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, -1).values[:, -1:], -torch.inf)
    if top_p is not None:
        logits = _nucleus(logits, top_p)
    return torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)[:, 0].to(device)


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens whose probabilities add up to top_p."""
    ordered, index = logits.sort(-1, descending=True)
    before = torch.softmax(ordered, -1).cumsum(-1) - torch.softmax(ordered, -1)
    kept = ordered.masked_fill(before >= top_p, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, index, kept)


def _check_prompt(model: LanguageModel, prompt: Tensor, n_tokens: int) -> None:
    if prompt.dim() != 2 or prompt.numel() == 0 or prompt.is_floating_point():
        raise UserError(
            f"a prompt is int64 [batch, tokens] with at least one token, not {prompt.dtype} {tuple(prompt.shape)}"
        )
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= model.vocab_size:
        raise UserError(
            f"prompt tokens {low} ... {high} are outside the model's vocabulary of {model.vocab_size}"
        )
    if n_tokens < 0:
        raise UserError(f"n_tokens={n_tokens} must be 0 or above")


def _check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 <= temperature < float("inf"):
        raise UserError(f"temperature={temperature} must be 0 (most likely token) or a number above")
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k={top_k} must be at least 1")
    if top_p is not None and not 0 < top_p <= 1:
        raise UserError(f"top_p={top_p} must be above 0 and at most 1")
