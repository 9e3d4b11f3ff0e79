"""One training step, for timing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments import machine, optim
from experiments.meta_model import nominal_vocabulary
from experiments.schema import Config
from zoo.context import Context
from zoo.model import LanguageModel
from zoo.recompute import Recompute

LATE = 10**6
"""Optimiser steps past every warm-up: what a model costs for most of its training."""


class Step:
    """Forward and backward pass, clipping and AdamW on fixed tokens, with noise; called, it takes a step."""

    def __init__(self, config: Config, model: LanguageModel, tokens: Tensor) -> None:
        self.config, self.model, self.tokens = config, model.train(), tokens
        self.optimizer = optim.optimizer(model, config.optim)
        self.keys = torch.arange(tokens.shape[0], device=tokens.device)
        self.recompute(config.trainer.recompute)

    def recompute(self, mode: str) -> None:
        """From now on, recompute as this mode does."""
        self.model.recompute = Recompute(mode, self.config.trainer.recompute_block)

    def loss(self) -> Tensor:
        """The training loss, with its graph."""
        with autocast(self.config, self.tokens.device):
            logits, aux = self.model(self.tokens, Context.of(self.tokens, noise_keys=self.keys))
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), self.tokens[:, 1:].flatten())
            return loss + self.model.aux_loss(aux)

    def __call__(self) -> None:
        self.loss().backward()
        optim.clip_gradients(self.optimizer, self.config.optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def autocast(config: Config, device: torch.device) -> torch.autocast:
    """As the trainer does it."""
    half = machine.precision(config.trainer.precision, device) == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=half)


def tokens_of(config: Config, batch: int, length: int, device: torch.device) -> Tensor:
    """Random tokens [batch, length] of the configured vocabulary, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(nominal_vocabulary(config), (batch, length), generator=generator).to(device)
