"""Calls of short convolutions and hyper-connections."""

from __future__ import annotations

from dataclasses import replace

import torch

from experiments.bench.cases.call import Call, call
from experiments.bench.inputs import InputFactory

WIDTH, STREAMS = 768, 4


def short_conv(d: InputFactory) -> list[Call]:
    """A causal convolution over four tokens with SiLU."""
    return [call("short_conv", d.normal(WIDTH), d.weight(WIDTH, 4), activation="silu")]


def short_conv_step(d: InputFactory) -> list[Call]:
    """One token of `short_conv` from its state."""
    (call,) = short_conv(d)
    return [Call(call.operation, call.arguments, {**call.options, "state": d.weight(d.batch, WIDTH, 3)})]


def coefficients(d: InputFactory) -> Call:
    """The coefficients of hyper-connections, from all streams of a token."""
    rows = STREAMS * (STREAMS + 2)
    phi, wide = d.weight(rows, STREAMS * WIDTH), torch.float32
    scale, bias = d.weight(3, dtype=wide), d.weight(rows, dtype=wide)
    return call("hyper_coefficients", d.normal(STREAMS, WIDTH), phi, scale, bias)


def mixing_map(d: InputFactory, operation: str) -> Call:
    """A map onto mixing matrices (cayley or sinkhorn), 4×4."""
    return call(operation, d.normal(STREAMS, STREAMS, dtype=torch.float32))


def pre(d: InputFactory) -> Call:
    """The input of a layer, read from the streams."""
    return call("hyper_pre", d.normal(STREAMS, WIDTH), d.gate(STREAMS))


def normed_pre(d: InputFactory) -> Call:
    """The same with the layer's norm."""
    return call(
        "hyper_pre", d.normal(STREAMS, WIDTH), d.gate(STREAMS), gain=d.weight(WIDTH, dtype=torch.float32)
    )


def reading(d: InputFactory) -> list[Call]:
    """The coefficients and the normalised input as a layer calls for them: both hand the streams on."""
    first, second = coefficients(d), normed_pre(d)
    return [replace(made, options={**made.options, "hand_on": True}) for made in (first, second)]


def post(d: InputFactory) -> Call:
    """The output of a layer, written to the streams."""
    mixing, streams = d.gate(STREAMS, STREAMS), d.normal(STREAMS, WIDTH)
    return call("hyper_post", streams, d.normal(WIDTH), mixing, d.gate(STREAMS))


def wrapped(d: InputFactory, operation: str) -> list[Call]:
    """All steps of hyper-connections around a layer."""
    return [coefficients(d), mixing_map(d, operation), pre(d), post(d)]
