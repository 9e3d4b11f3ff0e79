"""The same prompts through every model, so that texts can be read side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

import zoo
from experiments.configuration.schema import ProbeConfig
from experiments.runs.load_run import LoadedRun


def samples(loaded: LoadedRun, probe: ProbeConfig) -> Iterator[tuple[Any, ...]]:
    """A row a prompt: prompt, text, temperature, seed, tokens/s."""
    device = loaded.model.embedding.weight.device
    for text in probe.prompts:
        ids = [loaded.tokenizer.bos_id, *loaded.tokenizer.encode(text)]
        began = time.perf_counter()
        written = zoo.generate(
            loaded.model,
            torch.tensor([ids], device=device),
            probe.tokens,
            temperature=probe.temperature,
            top_k=probe.top_k,
            seed=probe.sample_seed,
        )
        tokens = [int(token) for token in written]
        rate = (len(ids) + len(tokens) - 1) / (time.perf_counter() - began)
        yield text, loaded.tokenizer.decode(tokens), probe.temperature, probe.sample_seed, rate
