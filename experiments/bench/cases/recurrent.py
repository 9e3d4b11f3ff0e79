"""Calls of recurrent operations: delta rule, memory mixture, mesa."""

from __future__ import annotations

from typing import Any

import torch

from experiments.bench.cases.call import Call, call
from experiments.bench.inputs import InputFactory


def kda(d: InputFactory) -> list[Call]:
    """The delta rule with a gate a channel, 96 heads of 128, as published comparisons have it."""
    heads, width = 96, 128
    q, k, v = d.unit(heads, width), d.unit(heads, width), d.normal(heads, width)
    return [call("delta_rule", q, k, v, d.log_gate(heads, width), d.gate(heads))]


def gated_delta(d: InputFactory) -> list[Call]:
    """The delta rule with a gate a head, 16 query and 64 value heads of 128."""
    few, heads, width = 16, 64, 128
    q, k, v = d.unit(few, width), d.unit(few, width), d.normal(heads, width)
    return [call("delta_rule", q, k, v, d.log_gate(heads), d.gate(heads))]


def kda_step(d: InputFactory) -> list[Call]:
    """One token of `kda` from a state."""
    (call,) = kda(d)
    state = d.weight(d.batch, 96, 128, 128, dtype=torch.float32)
    return [Call(call.operation, call.arguments, {"initial_state": state, "output_final_state": True})]


def memory_mixture(d: InputFactory, **options: Any) -> list[Call]:
    """Delta rules of five memories, three of them chosen for each token."""
    heads, width, memories, chosen = 2, 128, 5, 3
    q, k = d.unit(heads, width), d.unit(memories, heads, width)
    v, routes = d.normal(memories, heads, width), d.subset(memories, chosen)
    gates = d.log_gate(memories, heads), d.gate(memories, heads)
    return [call("memory_mixture", q, k, v, *gates, routes, d.gate(chosen), **options)]


def memory_step(d: InputFactory) -> list[Call]:
    """One token of `memory_mixture` from its states."""
    state = d.weight(d.batch, 5, 2, 128, 128, dtype=torch.float32)
    return memory_mixture(d, initial_state=state, output_final_state=True)


def mesa(d: InputFactory, heads: int = 6, width: int = 128, **options: Any) -> list[Call]:
    """The mesa layer, six heads of 128."""
    q, k, v = d.unit(heads, width), d.unit(heads, width), d.normal(heads, width)
    return [call("mesa", q, k, v, d.log_gate(heads), d.gate(heads), d.ones(heads, width), **options)]


def mesa_step(d: InputFactory, heads: int = 6, width: int = 128) -> list[Call]:
    """One token of `mesa` from its states."""
    states = tuple(torch.zeros(d.batch, heads, width, width, device=d.device) for _ in range(2))
    return mesa(d, heads, width, initial_state=states, output_final_state=True)
