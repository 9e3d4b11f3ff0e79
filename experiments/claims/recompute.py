"""Claim 14: what selective recomputation costs in time, on a CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from experiments.bench import timing
from experiments.bench.activation_memory import saved_bytes
from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.claims import measure
from experiments.claims.numbers import Number, exact, in_turns, paired
from experiments.presets import architectures
from experiments.schema import Config
from zoo import ModelConfig

TOKENS = 256


@measure(14)
def time_of_recomputation() -> Iterator[Number]:
    """A training step of a small OrthGSA with selective recomputation over one without, in turns, processor time."""
    config = Config()
    config.data = dataclasses.replace(config.data, seq_len=TOKENS)
    chosen = architectures(dataclasses.replace(ModelConfig(), d_model=256, depth=2))["orthgsa"]
    made = make_model(config, chosen, TOKENS, timing.CPU)
    step = TrainingStep(config, made, random_tokens(config, 1, TOKENS, timing.CPU))
    times = in_turns({mode: _under(mode, step) for mode in ("none", "selective")}, 9)
    yield paired(
        "time of a training step with recomputation over one without", times["selective"], times["none"]
    )
    kept = []
    for mode in ("selective", "none"):
        step.set_recompute(mode)
        kept.append(saved_bytes(step.loss))
    yield exact("bytes kept for the backward, with recomputation over without", kept[0] / kept[1], "times")


def _under(mode: str, step: TrainingStep) -> Callable[[], None]:
    def call() -> None:
        step.set_recompute(mode)
        step()

    return call
