"""AdamW's parameter groups, the learning-rate schedule and gradient clipping by group."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from experiments.configuration.schema import OptimConfig
from zoo.interfaces import MAIN, ParameterGroup, grouped_parameters


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """One group for every (clipping group, learning rate, decay or not) that the model's parts ask for.

    Weights of projections and embeddings decay; gains, biases, convolutions and the rest do not, unless their module
    says so (zoo.interfaces). The model's own group comes first: its learning rate is the one in metric rows.
    """
    groups: dict[tuple[ParameterGroup, bool], dict[int, nn.Parameter]] = {(MAIN, True): {}, (MAIN, False): {}}
    for parameter, group, decays in grouped_parameters(model):
        groups.setdefault((group, decays), {})[id(parameter)] = parameter
    return [
        {
            "params": list(parameters.values()),
            "weight_decay": config.weight_decay if decays else 0.0,
            "clip_group": group.clip,
            "lr": config.lr * group.lr_scale,
            "initial_lr": config.lr * group.lr_scale,
        }
        for (group, decays), parameters in groups.items()
        if parameters
    ]


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
    """Learning rate at optimiser step `step` (from 0), as a factor of every group's initial one.

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
    from experiments.parallel.sharded import clip  # its imports take a second, and plans need this module

    norms = [clip(params, limit) for params in groups.values()]
    return torch.stack(norms).norm() if len(norms) > 1 else norms[0]
