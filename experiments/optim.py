"""AdamW's parameter groups, the learning-rate schedule and gradient clipping by group."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn

from experiments.schema import OptimConfig
from zoo.errors import UserError
from zoo.modules.parameter_groups import MAIN, ParameterGroup, grouped_parameters


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """One group for every (clipping group, learning rate, decay or not) that the model's parts ask for.

    Weights of projections and embeddings decay; gains, biases, convolutions and the rest do not, unless their module
    says so (zoo.modules). The model's own group comes first: its learning rate is the one in metric rows.
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


def resolve_lr_min(config: OptimConfig) -> OptimConfig:
    """The recipe with lr_min = lr_min_ratio·lr, to 12 digits, in the place of the ratio; without a ratio as it is.

    So 0.1 of 3e-3 is 3e-4, and the run has the name that it has with lr_min=3e-4. Raises UserError for a ratio outside
    of 0 to 1, and beside an lr_min that is not the default.
    """
    ratio = config.lr_min_ratio
    if ratio is None:
        return config
    if not 0 <= ratio <= 1:
        raise UserError(f"optim.lr_min_ratio={ratio} must be a share of optim.lr, from 0 to 1")
    if config.lr_min != OptimConfig.lr_min:
        raise UserError(
            f"optim.lr_min={config.lr_min:g} and optim.lr_min_ratio={ratio:g} both set the lowest rate; leave one of "
            f"them out, or, where an experiment sets lr_min, add optim.lr_min={OptimConfig.lr_min:g}, its default"
        )
    return dataclasses.replace(config, lr_min=float(f"{ratio * config.lr:.12g}"), lr_min_ratio=None)


def at_rate(config: OptimConfig, rate: float) -> OptimConfig:
    """The recipe with another lr; lr_min keeps its ratio to lr, so that schedules of all rates have one shape.

    A lr_min_ratio stays, and does the same. The rate is no study's any more.
    """
    lr_min = config.lr_min
    if config.lr_min_ratio is None:
        lr_min = float(f"{rate * config.lr_min / config.lr:.6g}")
    return dataclasses.replace(config, lr=rate, lr_min=lr_min, lr_study=None)


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
