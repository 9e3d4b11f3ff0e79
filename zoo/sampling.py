"""Drawing a token from the scores of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """The rule by which a token is drawn: temperature, and among which tokens (see zoo.generate).

    Raises UserError for a value out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature={self.temperature} must be 0 (most likely token) or a number above")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k={self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} must be above 0 and at most 1")

    def draw(self, logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draw one token a row from logits [B, V]: int64 [B] on the device of the logits.

        Row b draws from generators[b], on the CPU: the same for every device and beside any other rows.
        Raises UserError for logits that are NaN.
        """
        if logits.isnan().any():
            raise UserError(
                "the model's scores of the next token are not numbers (NaN): its weights are damaged"
            )
        if self.temperature == 0:
            return logits.argmax(-1)
        probabilities = torch.softmax(self._narrowed(logits.double().cpu()), -1)
        drawn = [torch.multinomial(p, 1, generator=g) for p, g in zip(probabilities, generators, strict=True)]
        return torch.cat(drawn).to(logits.device)

    def _narrowed(self, logits: Tensor) -> Tensor:
        """Logits over the temperature, −∞ where a token is not to be drawn."""
        # Largest first: a temperature near 0 would otherwise divide to infinity.
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits = logits.masked_fill(logits < logits.topk(self.top_k, -1).values[:, -1:], -torch.inf)
        return logits if self.top_p is None else _nucleus(logits, self.top_p)


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens whose probabilities add up to top_p."""
    ordered, index = logits.sort(-1, descending=True)
    before = torch.softmax(ordered, -1).cumsum(-1) - torch.softmax(ordered, -1)
    kept = ordered.masked_fill(before >= top_p, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, index, kept)
