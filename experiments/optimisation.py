"""Optimisers by name, their parameter groups, and learning-rate schedules.

An optimiser of one's own is a function in any file that `blocks=[FOLDER]` names:

    @register_optimizer("sgd")
    def sgd(model: LanguageModel, config: OptimConfig) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameter_groups(model, config), lr=config.lr, momentum=config.momentum)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zoo.interfaces import MAIN, ParameterGroup, grouped_parameters

if TYPE_CHECKING:
    from experiments.configuration.schema import OptimConfig

Maker = Callable[[nn.Module, "OptimConfig"], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Maker] = {}


def register_optimizer(name: str) -> Callable[[Maker], Maker]:
    """Decorate what makes the optimiser `optim.name=NAME` of a model and the configuration's node `optim`.

    Its param_groups have what those of `parameter_groups` have. Raises ValueError for a name that is taken.
    """

    def add(make: Maker) -> Maker:
        if name in OPTIMIZERS:
            raise ValueError(f"there is an optimiser {name} already")
        OPTIMIZERS[name] = make
        return make

    return add


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """The optimiser that optim.name names, over the model's parameter groups."""
    return OPTIMIZERS[config.name](model, config)


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """One group for every (clipping group, learning rate, decay or not) that the model's parts ask for.

    Weights of projections and embeddings decay; gains, biases, convolutions and the rest do not, unless their module
    says so (zoo.interfaces). The model's own group comes first: its learning rate is the one in metric rows.
    """
    groups: dict[tuple[ParameterGroup, bool], dict[int, nn.Parameter]] = {(MAIN, True): {}, (MAIN, False): {}}
    for parameter, asked, decays in grouped_parameters(model):
        groups.setdefault((asked, decays), {})[id(parameter)] = parameter
    return [
        {
            "params": list(parameters.values()),
            "weight_decay": config.weight_decay if decays else 0.0,
            "clip_group": asked.clip,
            "lr": config.lr * asked.lr_scale,
            "initial_lr": config.lr * asked.lr_scale,
        }
        for (asked, decays), parameters in groups.items()
        if parameters
    ]


@register_optimizer("adamw")
def adamw(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101); the fused form where it exists."""
    return _adamw(parameter_groups(model, config), config)


def _adamw(groups: list[dict[str, Any]], config: OptimConfig) -> torch.optim.AdamW:
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


@register_optimizer("muon")
def muon(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Muon for the matrices of linear layers inside the model's layers, AdamW for all other parameters.

    An update of Muon is scaled by 0.2·√max(rows, columns), so that its root mean square is AdamW's and one optim.lr
    serves both. Sources: Jordan et al. 2024 (Muon); Liu et al. 2025 (arXiv:2502.16982), equation 4.
    """
    parts = [m.weight for layer in model.layers for m in layer.modules() if isinstance(m, nn.Linear)]
    matrices = {id(weight) for weight in parts}
    split: tuple[list[dict[str, Any]], ...] = ([], [])
    for group in parameter_groups(model, config):
        for inside in (True, False):
            chosen = [p for p in group["params"] if (id(p) in matrices) == inside]
            if chosen:
                split[not inside].append({**group, "params": chosen})
    ours, rest = split
    return Several(
        torch.optim.Muon(ours, lr=config.lr, momentum=config.momentum, adjust_lr_fn="match_rms_adamw"),
        _adamw(rest, config),
    )


class Several(torch.optim.Optimizer):
    """Optimisers of different parameters as one: their groups one after another, their state in one table.

    A checkpoint of it is one of any optimiser.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Have each of them take a step; closure: computes the loss and its gradients, once, before."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        groups = iter(self.param_groups)
        for part in self.parts:  # a checkpoint that was loaded has put others in their place
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state
            part.step()
        return loss


# Learning rates.

SCHEDULES: dict[str, Callable[[float, float, float], float]] = {
    "cosine": lambda progress, floor, _: floor + 0.5 * (1 - floor) * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress, floor, _: 1 - (1 - floor) * progress,
    "wsd": lambda progress, floor, share: 1 - (1 - floor) * max(0.0, 1 - (1 - progress) / share),
    "constant": lambda *_: 1.0,
}
"""Name -> the rate as a factor of lr, from the progress after the warm-up (0 to 1), lr_min / lr, and decay_share."""


def lr_factor(step: int, config: OptimConfig, max_steps: int) -> float:
    """Learning rate at optimiser step `step` (from 0), as a factor of every group's initial one.

    Linear warm-up over warmup_steps, then by optim.schedule, with p from 0 to 1 at max_steps:

        cosine    lr_min + ½·(lr − lr_min)·(1 + cos π·p)
        linear    lr − (lr − lr_min)·p
        wsd       lr, and over the last decay_share of p linearly to lr_min
        constant  lr
    """
    warmup = min(config.warmup_steps, max_steps)
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, max_steps - warmup))
    return SCHEDULES[config.schedule](progress, config.lr_min / config.lr, config.decay_share)
