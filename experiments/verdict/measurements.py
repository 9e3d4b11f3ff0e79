"""The models of a verdict and what is measured of them: parameters, FLOPs, decode state, and speed.

The models are the plain transformer, and the same with a block, or its nearest relative, in its place.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from experiments.bench import result_table, timing
from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.bench.suites.inference import STEPS, decode_call, prefill_call
from experiments.configuration.schema import Config
from experiments.costs.model_costs import count_flops
from experiments.parallel.group import pick_device, pick_precision
from zoo import cost, registry
from zoo.config import ModelConfig
from zoo.errors import UserError, unknown
from zoo.matching import match
from zoo.model import LanguageModel, meta_model

# Sizes, derived from the built modules.

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
    config = matched(config, model, length)
    return meta_model(config.model, **config.sizes)


def matched(config: Config, model: ModelConfig, length: int) -> Config:
    """The configuration of a model for sequences of `length` tokens, with its widths matched."""
    data = dataclasses.replace(config.data, seq_len=length)
    if config.match is not None:
        model = match(model, config.match, seq_len=length, length=config.match_length)
    return dataclasses.replace(config, model=model, data=data)


# Speed: training step, prefill and decoding, in turns with the transformer's.

SPEED_COLUMNS = [*result_table.COLUMNS, "ratio_low", "ratio_high"]
MODES = ("training step", "prefill", "decode")
REPEATS, SECONDS = 15, 20.0
"""Rounds of all models, and about the time that one mode at one length may take."""


def speed_rows(
    config: Config, models: dict[str, ModelConfig], length: int, mode: str
) -> list[dict[str, Any]]:
    """A row for every model but the first, beside the first, and for the second beside the third.

    ratio: the time of the one beside it (peer) over this one's, the median of pairs, with its interval.
    One sequence of `length` tokens: a training step on it, reading it as a prompt, a token after it.
    """
    device = pick_device(config.device)
    calls = {name: _call(matched(config, model, length), mode, device) for name, model in models.items()}
    times = timing.interleaved_within(calls, REPEATS, device, SECONDS)
    if mode == "decode":
        times = {name: [each / STEPS for each in milliseconds] for name, milliseconds in times.items()}
    plain, block, *others = calls
    pairs = [(name, plain) for name in (block, *others)] + [(block, other) for other in others]
    shared = {"tokens": length, "mode": mode, "backend": config.model.backend}
    shared["precision"] = pick_precision(config.trainer.precision, device)
    return [_row(one, peer, times, device) | shared for one, peer in pairs]


def _row(one: str, peer: str, times: dict[str, list[float]], device: torch.device) -> dict[str, Any]:
    ratio, low, high = timing.ratios(times[peer], times[one])
    row = result_table.row("verdict", one, times[one], 0.0, device)
    return row | {"peer": peer, "ratio": ratio, "ratio_low": low, "ratio_high": high}


def _call(config: Config, mode: str, device: torch.device) -> Callable[[], object]:
    """The call of one mode on random tokens."""
    length = config.data.seq_len
    model = make_model(config, config.model, length, device)
    tokens = random_tokens(config, 1, length, device)
    if mode == "training step":
        return TrainingStep(config, model, tokens)
    if mode == "prefill":
        return prefill_call(model.eval(), tokens)
    return decode_call(model.eval(), tokens, torch.float32, rounds=REPEATS + 1)


# Models.

PLAIN = {"mixer": "attention", "residual": "add", "channel": "swiglu"}
"""The transformer's block of each kind."""


def find_block(name: str | None) -> registry.Block:
    """The block to be judged, of any kind. Raises UserError for none, an unknown one, or the transformer's."""
    names = {
        candidate: block for kind in registry.KINDS for candidate, block in registry.blocks(kind).items()
    }
    judged = sorted(set(names) - set(PLAIN.values()))
    if name is None:
        raise UserError(f"job=verdict needs block=NAME, one of {', '.join(judged)}")
    if name in PLAIN.values():
        raise UserError(
            f"block={name} is part of the plain transformer, which others are compared with; choose another"
        )
    if name not in names:
        raise unknown("block", name, judged)
    return names[name]


def nearest_relative(block: registry.Block, asked: str | None) -> registry.Block | None:
    """The block to compare with beside the transformer's: the one asked for, or the most alike of its kind.

    Most alike: of the same family, before that with the same mask too, the first by name; None where there is none, or
    where asked is "none". Raises UserError for one of another kind.
    """
    others = {
        name: other
        for name, other in registry.blocks(block.kind).items()
        if name not in (block.name, PLAIN[block.kind])
    }
    if asked == "none":
        return None
    if asked is not None:
        if asked not in others:
            raise unknown(
                f"{block.kind} to compare {block.name} with (verdict.relative)", asked, [*others, "none"]
            )
        return others[asked]
    alike = sorted(
        (other.mask != block.mask, other.name) for other in others.values() if other.family == block.family
    )
    return others[alike[0][1]] if alike else None


def models(
    base: ModelConfig, block: registry.Block, relative: registry.Block | None
) -> dict[str, ModelConfig]:
    """The models by the name of their block, the transformer first: of the same width, heads and depth as `base`.

    A mixer stands in every layer, a residual scheme or channel mixer around or beside full attention in every layer.
    """
    plain = dataclasses.replace(
        base, preset="transformer", pattern="F", residual=_default("residual"), channel=_default("channel")
    )
    compared = {"transformer": plain}
    for one in (block, relative):
        if one is not None:
            compared[one.name] = _with_block(plain, one)
    return compared


def _default(part: str) -> object:
    return getattr(ModelConfig(), part)


def _with_block(plain: ModelConfig, block: registry.Block) -> ModelConfig:
    model = copy.deepcopy(plain)
    if block.kind == "mixer":
        return dataclasses.replace(model, preset=None, pattern=block.word)
    getattr(model, block.kind).name = block.name
    return model
