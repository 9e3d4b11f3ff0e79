"""Equal parameters or FLOPs by the channel mixer's hidden width."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable

from zoo import cost, registry
from zoo.config import ModelConfig, from_dict
from zoo.errors import UserError
from zoo.matching.reference import TOLERANCE, plain_transformer, with_options
from zoo.model import letters_of, on_meta

CLOSE = 0.005
"""The relative error below which a width divisible by 8 (fast on GPUs) is taken; then one divisible by 4, by 2."""

_FEW, _MORE = 8, 16
_VOCAB = 8


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A number to make equal. of(config): it, linear in the hidden width; name: as in match=NAME; unit: in words."""

    name: str
    unit: str
    of: Callable[[ModelConfig], float]


def match_parameters(config: ModelConfig, seq_len: int) -> ModelConfig:
    """The configuration with the hidden width at which parameters beside embedding and head are the transformer's."""
    unit = "parameters beside its embedding"
    return _match(config, Quantity("params", unit, lambda model: _counted(model, seq_len)))


def match_flops(config: ModelConfig, seq_len: int, length: int) -> ModelConfig:
    """The configuration with the hidden width at which a token's forward FLOPs at `length` are the transformer's.

    The LM head is left out: it is the same in all of them, and with it 1 % would be less strict.
    """
    unit = f"forward FLOPs a token at {length:,} tokens, LM head left out"
    return _match(config, Quantity("flops", unit, lambda model: _counted(model, seq_len, length)))


def _match(config: ModelConfig, quantity: Quantity) -> ModelConfig:
    name = config.channel.name
    options = getattr(config.channel, name)
    if not hasattr(options, "hidden"):
        raise UserError(
            f"match={quantity.name} solves channel.{name}.hidden, which {name} does not have; leave match out"
        )
    target = quantity.of(plain_transformer(config))
    few, more = (quantity.of(_with_hidden(config, width)) for width in (_FEW, _MORE))
    each = (more - few) / (_MORE - _FEW)
    none = few - _FEW * each
    width = _width((target - none) / each, lambda w: abs((none + each * w) / target - 1))
    if width is None:
        reason = _reason_for_no_width(name, quantity.unit, target, none, each)
        advice = _advice(_with_hidden(config, 1), quantity, target)
        raise UserError(f"match={quantity.name}: {reason}; {advice}, or set match=null")
    if options.hidden not in (None, width):
        raise UserError(
            f"match={quantity.name} makes channel.{name}.hidden {width}, not {options.hidden}; "
            "leave one of the two out"
        )
    return _with_hidden(config, width)


def _width(ideal: float, error: Callable[[int], float]) -> int | None:
    """The nearest width to `ideal` that is a multiple of 8, 4, 2 or 1 and close enough, if there is one."""
    for step in (8, 4, 2, 1):
        width = max(step, round(ideal / step) * step)
        if error(width) <= (CLOSE if step > 1 else TOLERANCE):
            return width
    return None


def _reason_for_no_width(name: str, unit: str, target: float, none: float, each: float) -> str:
    """The reason why no width fits: the model is too large even with the narrowest, or one unit is too coarse."""
    least = none + each
    nearest = max(1, round((target - none) / each))
    found = none + nearest * each
    possible = (
        f"the nearest is {found:,.0f} ({found / target - 1:+.1%}), with channel.{name}.hidden={nearest}"
    )
    if least > target:
        return (
            f"with the narrowest {name} the model has {least:,.0f} {unit}, and the transformer that it is to match "
            f"{target:,.0f}; {possible}"
        )
    return (
        f"one unit of {name}'s hidden width is {each / target:.1%} of the {target:,.0f} {unit}, too coarse to come "
        f"within 1 %; {possible}"
    )


def _advice(narrowest: ModelConfig, quantity: Quantity, target: float) -> str:
    """Return what would make a match possible: an option of a mixer that saves enough work, or a wider model."""
    mixers = registry.mixer_by_letter()
    for block in {mixers[letter].name: mixers[letter] for letter in letters_of(narrowest)}.values():
        for option in block.cls.work_options:
            one, two = (
                quantity.of(with_options(narrowest, "mixers", block.name, **{option: value}))
                for value in (1, 2)
            )
            most = int(1 + (target - one) / (two - one)) if two > one else 0
            if most >= 1:
                return f"set mixers.{block.name}.{option} to {most} or less, choose a wider model"
    return "choose a wider model or fewer options"


def _with_hidden(config: ModelConfig, width: int) -> ModelConfig:
    return with_options(config, "channel", config.channel.name, hidden=width)


def _counted(config: ModelConfig, seq_len: int, length: int | None = None) -> float:
    """Parameters, or FLOPs a token where a length is given."""
    return _cached(json.dumps(dataclasses.asdict(config), sort_keys=True), seq_len, length)


@functools.lru_cache(maxsize=1024)
def _cached(config_json: str, seq_len: int, length: int | None) -> float:
    """The count without embedding and head, cached: the cells of a sweep differ mostly in their seeds."""
    config = from_dict(ModelConfig, json.loads(config_json))
    model = on_meta(config, vocab_size=_VOCAB, seq_len=seq_len)
    if length is None:
        return cost.parameters_non_embedding(model)
    return cost.flops_per_token(model, length) - 2 * config.d_model * _VOCAB
