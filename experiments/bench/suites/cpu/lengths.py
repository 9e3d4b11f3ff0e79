"""Every mixer alone at growing lengths: how its time a token grows."""

from __future__ import annotations

import functools
from typing import Any

import torch
from tqdm import tqdm

from experiments.bench import result_table, timing
from experiments.bench.inputs import InputFactory
from experiments.bench.model_steps import LATE_STEP
from experiments.bench.timing import CPU
from zoo import registry
from zoo.config import ModelConfig
from zoo.context import Context
from zoo.interfaces import Mixer, set_step
from zoo.model import LanguageModel, Layer

D_MODEL, HEADS = 256, 4


def run(lengths: list[int], repeats: int) -> list[dict[str, Any]]:
    """Rows of forward+backward at batch 1, 4 heads of 64; ratio: time a token at the shortest length over here."""
    rows = []
    for block in tqdm(registry.blocks("mixer").values(), desc="length", unit="mixer"):
        works = {n: functools.partial(forward_backward, mixer(block.letter, n), *inputs(n)) for n in lengths}
        times = timing.interleaved({str(n): work for n, work in works.items()}, repeats, CPU)
        first = timing.summary(times[str(lengths[0])])["milliseconds_median"] / lengths[0]
        for length in lengths:
            row = result_table.row(
                "length", block.name, times[str(length)], first * length, CPU, tokens=length
            )
            rows.append({**row, "backend": "auto", "mode": "forward+backward", "precision": "float32"})
            tqdm.write(result_table.format_row(rows[-1]))
    return rows


def mixer(letter: str, length: int, d_model: int = D_MODEL, heads: int = HEADS) -> Mixer:
    """A fresh mixer in a model configured for `length` tokens, past its warm-up."""
    config = ModelConfig(pattern=letter, depth=1, d_model=d_model, n_heads=heads)
    layer = LanguageModel(config, vocab_size=8, seq_len=length).layers[0]
    assert isinstance(layer, Layer)
    set_step(layer, LATE_STEP)
    return layer.mixer.train()


def inputs(length: int, d_model: int = D_MODEL) -> tuple[torch.Tensor, Context]:
    """Normalised activations [1, length, D] that require a gradient, and their context."""
    torch.manual_seed(0)
    x = InputFactory(1, length, CPU, torch.float32).normal(d_model)
    return x, Context.of(torch.zeros(1, length, dtype=torch.int64))


def forward_backward(mixer: Mixer, x: torch.Tensor, context: Context) -> None:
    """One forward and backward pass, auxiliary losses included."""
    y, aux = mixer(x, context)
    torch.autograd.backward([y.square().mean() + sum(aux.values(), torch.zeros(()))])
    mixer.zero_grad(set_to_none=True)
    x.grad = None
