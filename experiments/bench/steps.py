"""A training step of every preset against the plain transformer's, with equally many parameters."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from tqdm import tqdm

from experiments import optim
from experiments.bench import tables, timing
from experiments.plan import nominal_vocabulary
from experiments.presets import architectures
from experiments.schema import Config
from zoo.matching import match_parameters
from zoo.model import LanguageModel
from zoo.modules.step_buffer import set_step

CPU = torch.device("cpu")
LATE = 10**6


def run(config: Config) -> list[dict[str, Any]]:
    """Rows at the configured size and batch; ratio: the transformer's time over this architecture's."""
    d = config.data
    vocabulary = nominal_vocabulary(config)
    tokens = torch.randint(vocabulary, (d.batch_size, d.seq_len), generator=torch.Generator().manual_seed(0))
    calls = {}
    for name, model_config in architectures(config.model).items():
        matched = match_parameters(model_config, d.seq_len)
        model = LanguageModel(matched, vocab_size=vocabulary, seq_len=d.seq_len).train()
        set_step(model, LATE)
        calls[name] = functools.partial(
            _step, model, optim.optimizer(model, config.optim), config.optim.clip, tokens
        )
    with tqdm(total=1, desc="step", unit="round") as bar:
        times = timing.interleaved(calls, max(config.bench.repeats, 5), CPU)
        bar.update()
    plain = timing.summary(times["transformer"])["milliseconds_median"]
    rows = []
    for name, milliseconds in times.items():
        row = tables.row("step", name, milliseconds, plain, CPU, tokens=d.seq_len)
        rows.append({**row, "backend": "auto", "mode": "training step", "precision": "float32"})
        rows[-1]["batch"] = d.batch_size
        tqdm.write(tables.line(rows[-1]))
    return rows


def _step(model: LanguageModel, optimizer: torch.optim.Optimizer, clip: float, tokens: torch.Tensor) -> None:
    logits, aux = model(tokens)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    (loss + model.aux_loss(aux)).backward()
    optim.clip_gradients(optimizer, clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
