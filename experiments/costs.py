"""The costs of a configuration, from its model without storage: FLOPs a token and decode-state bytes."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.schema import Config
from zoo import cost
from zoo.model import LanguageModel

STATE_LENGTHS = (1024, 8192, 131_072)
"""Tokens after which the decode state is counted."""


def tokens_per_step(config: Config) -> int:
    """Tokens of one optimiser step: batch_size · seq_len · accumulate."""
    return config.data.batch_size * config.data.seq_len * config.trainer.accumulate


def meta_model(config: Config) -> LanguageModel:
    """The model of a configuration on the meta device."""
    return cost.on_meta(config.model, vocab_size=nominal_vocabulary(config), seq_len=config.data.seq_len)


def nominal_vocabulary(config: Config) -> int:
    """Vocabulary before the text is read; a BPE trained on a tiny text may end up smaller."""
    return {"bytes": 257, "gpt2": 50257}.get(config.data.tokenizer, config.data.vocab_size)


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
