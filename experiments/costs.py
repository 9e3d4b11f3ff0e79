"""FLOPs and decode-state bytes of the model of a run, derived once from its module without storage."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.schema import Config
from zoo import cost

STATE_LENGTHS = (1024, 8192, 131_072)
"""Tokens after which the decode state is counted."""


@dataclass(frozen=True)
class Costs:
    """FLOPs a token at data.seq_len, forward in evaluation and forward and backward in training; decode-state bytes.

    state_bytes: number of tokens -> bytes of the state of one sequence, in fp32.
    """

    forward_flops: float
    training_flops: float
    state_bytes: dict[int, int]


def derive_costs(config: Config, vocab_size: int) -> Costs:
    """The costs of the model that a configuration makes for a vocabulary of this size."""
    length = config.data.seq_len
    model = cost.on_meta(config.model, vocab_size=vocab_size, seq_len=length)
    return Costs(
        forward_flops=cost.flops_per_token(model, length),
        training_flops=cost.flops_per_token(model, length, backward=True),
        state_bytes={tokens: cost.state_bytes(model, tokens) for tokens in STATE_LENGTHS},
    )
