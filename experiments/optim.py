"""AdamW's parameter groups, the learning-rate schedule and gradient clipping by group."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from experiments.schema import OptimConfig


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Two groups: weights of projections and embeddings decay; gains, biases, convolutions and the rest do not."""
    decaying = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding)}
    decay = [p for p in model.parameters() if id(p) in decaying]
    keep = [p for p in model.parameters() if id(p) not in decaying]
    groups = [
        {"params": decay, "weight_decay": config.weight_decay, "clip_group": "main"},
        {"params": keep, "weight_decay": 0.0, "clip_group": "main"},
    ]
    return [g for g in groups if g["params"]]


def optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over the parameter groups; the fused form where it exists."""
    return torch.optim.AdamW(
        parameter_groups(model, config),
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def lr_factor(step: int, config: OptimConfig, max_steps: int) -> float:
    """Learning rate at optimiser step `step` (from 0), as a factor of config.lr.

    Linear warm-up over warmup_steps, then lr_min + ½(lr − lr_min)(1 + cos π·progress), reaching lr_min at max_steps.
    """
    warmup = min(config.warmup_steps, max_steps)
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, max_steps - warmup)
    floor = config.lr_min / config.lr
    return floor + 0.5 * (1 - floor) * (1 + math.cos(math.pi * min(1.0, progress)))


def clip_gradients(optimizer: torch.optim.Optimizer, limit: float) -> Tensor:
    """Clip every clipping group's gradient norm to `limit`; returns the norm over all groups before clipping."""
    groups: dict[str, list[nn.Parameter]] = {}
    for group in optimizer.param_groups:
        groups.setdefault(group["clip_group"], []).extend(p for p in group["params"] if p.grad is not None)
    norms = [nn.utils.clip_grad_norm_(params, limit) for params in groups.values()]
    return torch.stack(norms).norm() if len(norms) > 1 else norms[0]
