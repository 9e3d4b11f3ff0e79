"""Checks of the node `probe`."""

from __future__ import annotations

import math

from experiments import saved_weights
from experiments.schema import ProbeConfig
from zoo.discovery import left_out
from zoo.errors import UserError

_COUNTS = ("windows", "batch_size", "long_windows", "extrapolate", "map_tokens", "routing_tokens", "tokens")


def check_probe(probe: ProbeConfig) -> None:
    """Raise UserError for a number out of range."""
    saved_weights.check(probe.at)
    for key in (*_COUNTS, "top_k"):
        value = getattr(probe, key)
        if value is not None and value < 1:
            raise UserError(f"probe.{key}={value} must be at least 1")
    if not 0 <= probe.temperature < math.inf:
        raise UserError(
            f"probe.temperature={probe.temperature} must be 0 (most likely token) or a number above"
        )


def check_measures() -> None:
    """Raise UserError where a measure's file cannot be imported: tables without it would pass for whole ones."""
    for line in left_out("zoo.probes.measures"):
        raise UserError(f"probing needs every measure: {line}")
