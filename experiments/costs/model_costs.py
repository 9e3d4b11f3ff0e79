"""The costs of a configuration, from its model without storage: FLOPs a token, decode-state bytes; a run's MFU."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from experiments.configuration.schema import Config, TrainerConfig
from experiments.costs.peak_flops import utilisation
from zoo import cost
from zoo.errors import UserError
from zoo.matching.reference import plain_transformer
from zoo.model import LanguageModel, on_meta

STATE_LENGTHS = (1024, 8192, 131_072)
"""Tokens after which the decode state is counted, beside data.seq_len."""


def resolve_steps(config: Config) -> Config:
    """The configuration with the max_steps that trainer.tokens_per_parameter asks for; without one as it is.

    Raises UserError for a number that is not above 0, and beside a max_steps that is not the default.
    """
    ratio, trainer = config.trainer.tokens_per_parameter, config.trainer
    if ratio is None:
        return config
    if not 0 < ratio < math.inf:
        raise UserError(f"trainer.tokens_per_parameter={ratio} must be a number above 0")
    if trainer.max_steps != TrainerConfig.max_steps:
        raise UserError(
            f"trainer.max_steps={trainer.max_steps} and trainer.tokens_per_parameter={ratio:g} both set the length of "
            "training; leave one of them out"
        )
    plain = dataclasses.replace(config, model=plain_transformer(config.model))
    steps = max(1, round(ratio * cost.parameters_non_embedding(meta_model(plain)) / config.tokens_per_step))
    resolved = dataclasses.replace(trainer, max_steps=steps, tokens_per_parameter=None)
    return dataclasses.replace(config, trainer=resolved)


def meta_model(config: Config) -> LanguageModel:
    """The model of a configuration on the meta device."""
    return on_meta(config.model, vocab_size=config.nominal_vocabulary, seq_len=config.data.seq_len)


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
    model = on_meta(config.model, vocab_size=vocab_size, seq_len=length)
    return Costs(
        forward_flops=cost.flops_per_token(model, length),
        training_flops=cost.flops_per_token(model, length, backward=True),
        state_bytes={tokens: cost.state_bytes(model, tokens) for tokens in sorted({length, *STATE_LENGTHS})},
    )


@dataclass
class Utilisation:
    """The MFU of a run at rates in tokens a second; None where it is above 1.

    flops: returns the FLOPs of a token in training; peak: returns the peak of its devices together, FLOP/s. Both are
    asked for once, when the first rate is given: training need not wait for them. seconds: what finding them took.
    """

    flops: Callable[[], float]
    peak: Callable[[], float]
    seconds: float = 0.0
    _found: tuple[float, float] | None = None

    def __call__(self, rate: float) -> float | None:
        if self._found is None:
            began = time.perf_counter()
            self._found = self.flops(), self.peak()
            self.seconds = time.perf_counter() - began
        flops, peak = self._found
        return utilisation(rate * flops, peak)
