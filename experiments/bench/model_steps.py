"""What benchmarks time of models: training steps and steps of decoding far into a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.configuration.schema import Config
from experiments.data.tasks_base import IGNORE
from experiments.optimisation import make_optimizer
from experiments.parallel.group import pick_precision
from experiments.training.lightning_modules import clip_gradients
from zoo.config import ModelConfig
from zoo.context import Context
from zoo.interfaces import set_step
from zoo.model import DecodeState, LanguageModel
from zoo.modules.caches import fill_state
from zoo.recompute import Recompute

LATE_STEP = 10**6
"""An optimiser step past every warm-up: models are timed as they are for most of their training."""


class TrainingStep:
    """Forward and backward pass, clipping and AdamW on fixed tokens, with noise; called, it takes a step."""

    def __init__(self, config: Config, model: LanguageModel, tokens: Tensor) -> None:
        self.config, self.model, self.tokens = config, model.train(), tokens
        self.targets = F.pad(tokens[:, 1:], (0, 1), value=IGNORE)
        self.optimizer = make_optimizer(model, config.optim)
        self.keys = torch.arange(tokens.shape[0], device=tokens.device)
        self.set_recompute(config.trainer.recompute)

    def set_recompute(self, mode: str) -> None:
        """From now on, recompute as this mode does."""
        self.model.recompute = Recompute(mode, self.config.trainer.recompute_block)

    def recomputing(self, mode: str) -> Callable[[], None]:
        """Return a call that takes a step under a mode of recomputation, which stays set."""

        def call() -> None:
            self.set_recompute(mode)
            self()

        return call

    def loss(self) -> Tensor:
        """The training loss, with its graph."""
        with autocast(self.config, self.tokens.device):
            ctx = Context.of(self.tokens, noise_keys=self.keys)
            (nats, *_), aux = self.model(self.tokens, ctx, self.targets)
            return ctx.target_mean(nats, self.targets) + self.model.aux_loss(aux)

    def __call__(self) -> None:
        update(self.optimizer, self.loss(), self.config.optim.clip)


def update(optimizer: torch.optim.Optimizer, loss: Tensor, clip: float) -> None:
    """Backward pass, clipping to gradient norm `clip`, one step of the optimiser; gradients are dropped."""
    loss.backward()
    clip_gradients(optimizer, clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def make_model(config: Config, model: ModelConfig, length: int, device: torch.device) -> LanguageModel:
    """A fresh model for the configured vocabulary and sequences of `length` tokens, past its warm-ups."""
    made = LanguageModel(model, vocab_size=config.nominal_vocabulary, seq_len=length)
    set_step(made, LATE_STEP)
    return made.to(device)


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """The autocast context that the trainer uses: bf16 where trainer.precision says so."""
    half = pick_precision(config.trainer.precision, device) == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=half)


def random_tokens(config: Config, batch: int, length: int, device: torch.device) -> Tensor:
    """Random tokens int64 [batch, length] of the configured vocabulary, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(config.nominal_vocabulary, (batch, length), generator=generator).to(device)


# Decode states after so many tokens, made without decoding them.


def state_after(
    model: LanguageModel, tokens: int, dtype: torch.dtype, batch: int = 1, room: int = 0
) -> DecodeState:
    """The decode state of `batch` sequences after `tokens` tokens, whose caches are full of zeros.

    room: tokens to make room for beside those. The zeros stand in memory of their own, which takes as long to read
    as keys and values do.
    Raises TypeError where a mixer's state holds something that cannot be filled.
    """
    state = _empty(model, batch, tokens + room, model.embedding.weight.device, dtype)
    fill_state(state.layers, tokens)
    for x in tensors_in(state.layers):
        if not x.is_meta and x.dtype != torch.bool:
            x.add_(0)  # fresh zeros are all one page of memory, until they are written to
    return state


def state_bytes(model: LanguageModel, tokens: int, dtype: torch.dtype, batch: int = 1) -> int:
    """Bytes of the decode state of `batch` sequences after `tokens` tokens; nothing is stored."""
    state = _empty(model, batch, tokens, torch.device("meta"), dtype)
    return sum(layer.mixer.state_bytes(part) for layer, part in zip(model.layers, state.layers, strict=True))


def tensors_in(state: Any) -> Iterator[Tensor]:
    """The tensors in containers and in the attributes of objects, at any depth."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, list | tuple | dict):
        for part in state.values() if isinstance(state, dict) else state:
            yield from tensors_in(part)
    elif hasattr(state, "__dict__") and not isinstance(state, type):
        yield from tensors_in(vars(state))


def _empty(
    model: LanguageModel, batch: int, capacity: int, device: torch.device, dtype: torch.dtype
) -> DecodeState:
    options = {"capacity": capacity, "device": device, "dtype": dtype}
    return DecodeState([layer.mixer.init_state(batch, **options) for layer in model.layers])
