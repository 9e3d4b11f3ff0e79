"""Sizes of the models of a verdict, derived from the built modules: parameters, FLOPs, decode state."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.configuration.schema import Config
from experiments.costs.flop_count import count_flops
from experiments.costs.model_costs import meta_model
from zoo import cost
from zoo.config import ModelConfig
from zoo.matching import match
from zoo.model import LanguageModel

COLUMNS = ("model", "tokens", "parameters_non_embedding", "flops_forward", "state_bytes")


def size_rows(config: Config, models: dict[str, ModelConfig], length: int) -> list[dict[str, Any]]:
    """A row for every model configured for `length` tokens, matched as `match` asks.

    flops_forward: of a token, mean over the sequence; state_bytes: of one sequence after `length` tokens, in fp32.
    """
    rows = []
    for name, model in models.items():
        made = at_length(config, model, length)
        values = (
            name,
            length,
            cost.parameters_non_embedding(made),
            count_flops(made, length).per_token,
            cost.state_bytes(made, length),
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def at_length(config: Config, model: ModelConfig, length: int) -> LanguageModel:
    """The model without storage, for sequences of `length` tokens, with its widths matched."""
    return meta_model(matched(config, model, length))


def matched(config: Config, model: ModelConfig, length: int) -> Config:
    """The configuration of a model for sequences of `length` tokens, with its widths matched."""
    data = dataclasses.replace(config.data, seq_len=length)
    if config.match is not None:
        model = match(model, config.match, seq_len=length, length=config.match_length)
    return dataclasses.replace(config, model=model, data=data)
