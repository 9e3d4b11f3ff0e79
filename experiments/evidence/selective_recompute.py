"""Claim 14: what selective recomputation costs: FLOPs, bytes and time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from experiments.bench import timing
from experiments.bench.memory_traffic import OperatorBytes, saved_bytes
from experiments.bench.model_steps import TrainingStep, make_model, random_tokens
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config
from experiments.evidence import measure
from experiments.evidence.numbers import Number, in_turns, near, paired
from kernels.autograd import flop_counter
from zoo import ModelConfig

TOKENS = 256
VERSIONS = 0.05
"""Room for other versions of PyTorch, which make an operation of other operators."""


@measure(14)
def time_of_recomputation() -> Iterator[Number]:
    """A training step of a small OrthGSA with selective recomputation over one without, in turns, processor time."""
    config = Config()
    config.data = dataclasses.replace(config.data, seq_len=TOKENS)
    chosen = architectures(dataclasses.replace(ModelConfig(), d_model=256, depth=2))["orthgsa"]
    made = make_model(config, chosen, TOKENS, timing.CPU)
    step = TrainingStep(config, made, random_tokens(config, 1, TOKENS, timing.CPU))
    times = in_turns({mode: step.recomputing(mode) for mode in ("none", "selective")}, 5)
    yield paired(
        "time of a training step with recomputation over one without", times["selective"], times["none"]
    )
    (flops, moved, kept), without = counts(step, "selective"), counts(step, "none")
    yield near(
        "FLOPs of a training step with recomputation over one without", flops / without[0], "times", VERSIONS
    )
    yield near(
        "bytes that its operators read and write, over those without", moved / without[1], "times", VERSIONS
    )
    yield near("bytes kept for the backward, over those without", kept / without[2], "times", VERSIONS)


def counts(step: TrainingStep, mode: str) -> tuple[int, int, int]:
    """FLOPs, bytes of all operators, and bytes kept for the backward of the loss and its gradients."""
    step.set_recompute(mode)
    with flop_counter() as flops, OperatorBytes() as moved:
        step.loss().backward()
    step.model.zero_grad(set_to_none=True)
    return flops.get_total_flops(), moved.total, saved_bytes(step.loss)
