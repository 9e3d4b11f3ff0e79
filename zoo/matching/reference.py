"""The model that others are matched with, and how close a match is."""

from __future__ import annotations

import dataclasses

from zoo.config import ModelConfig
from zoo.model import letters_of

TOLERANCE = 0.01
"""The relative difference up to which two numbers are matched."""


def plain_transformer(config: ModelConfig) -> ModelConfig:
    """The plain transformer of a configuration's d_model, heads and depth."""
    return ModelConfig(
        d_model=config.d_model, n_heads=config.n_heads, depth=len(letters_of(config)), backend=config.backend
    )


def with_options(config: ModelConfig, part: str, block: str, **options: int) -> ModelConfig:
    """The configuration with other options of a block; part: "mixers", "residual" or "channel"."""
    node = getattr(config, part)
    changed = dataclasses.replace(getattr(node, block), **options)
    return dataclasses.replace(config, **{part: dataclasses.replace(node, **{block: changed})})
