"""Parameter matching: the feed-forward width that gives a model as many parameters as the plain transformer."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable

from zoo import cost
from zoo.config import ModelConfig, from_dict
from zoo.errors import UserError
from zoo.model import letters_of

TOLERANCE = 0.01
CLOSE = 0.005
"""The relative error below which a width divisible by 8 (fast on GPUs) is taken; then one divisible by 4, by 2."""


def match_parameters(config: ModelConfig, seq_len: int) -> ModelConfig:
    """The configuration with the hidden width of its channel mixer solved for.

    The target is the plain transformer of the same d_model, heads and depth (pattern F, residual add, SwiGLU of
    its default width): parameters without embedding and head agree within 1 %. Parameters are linear in the
    width, so two models on the meta device give the slope. Raises UserError where no width comes within 1 %, and
    where the configuration names a width that is not the solved one.
    """
    name, depth = config.channel.name, len(letters_of(config))
    options = getattr(config.channel, name)
    if not hasattr(options, "hidden"):
        raise UserError(
            f"match=params solves channel.{name}.hidden, which {name} does not have; leave match out"
        )
    target = _transformer(config.d_model, config.n_heads, depth, seq_len)
    few, more = (_parameters(_with_hidden(config, width), seq_len) for width in (8, 16))
    each = (more - few) / 8
    width = _width(8 + (target - few) / each, lambda w: abs((few + each * (w - 8)) / target - 1))
    if width is None:
        raise UserError(f"match=params: {_why_not(name, target, few - 7 * each, each)}; or set match=null")
    if options.hidden not in (None, width):
        raise UserError(
            f"match=params makes channel.{name}.hidden {width}, not {options.hidden}; leave one of the two out"
        )
    return _with_hidden(config, width)


def _width(ideal: float, error: Callable[[int], float]) -> int | None:
    """The nearest width to `ideal` that is a multiple of 8, 4, 2 or 1 and close enough, if there is one."""
    for step in (8, 4, 2, 1):
        width = max(step, round(ideal / step) * step)
        if error(width) <= (CLOSE if step > 1 else TOLERANCE):
            return width
    return None


def _why_not(name: str, target: int, least: float, each: float) -> str:
    """The reason why no width fits: the model is too large even with the narrowest, or one unit is too coarse."""
    if least > target:
        return (
            f"with the narrowest {name} the model has {least:,.0f} parameters beside its embedding, and the "
            f"transformer that it is to match {target:,}; choose a wider model or fewer options"
        )
    return (
        f"one unit of {name}'s hidden width is {each / target:.1%} of the {target:,} parameters to match, too coarse "
        "to come within 1 %; choose a wider model"
    )


def _with_hidden(config: ModelConfig, width: int) -> ModelConfig:
    name = config.channel.name
    options = dataclasses.replace(getattr(config.channel, name), hidden=width)
    return dataclasses.replace(config, channel=dataclasses.replace(config.channel, **{name: options}))


@functools.lru_cache(maxsize=64)
def _transformer(d_model: int, n_heads: int, depth: int, seq_len: int) -> int:
    return _parameters(ModelConfig(d_model=d_model, n_heads=n_heads, depth=depth), seq_len)


def _parameters(config: ModelConfig, seq_len: int) -> int:
    return _cached_parameters(json.dumps(dataclasses.asdict(config), sort_keys=True), seq_len)


@functools.lru_cache(maxsize=1024)
def _cached_parameters(config_json: str, seq_len: int) -> int:
    """Parameters without embedding and head, cached: the cells of a sweep differ mostly in their seeds."""
    config = from_dict(ModelConfig, json.loads(config_json))
    return cost.parameters_non_embedding(cost.on_meta(config, vocab_size=8, seq_len=seq_len))
