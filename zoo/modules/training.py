"""What a block says of its training: its parameters' optimiser settings, and the step where its maths changes with it.

    class Indexer(nn.Module):
        parameter_group = ParameterGroup("indexer", lr_scale=10.0)  # this module's parameters and its parts'
        decays = ("bank",)                                          # own parameters under weight decay

Weights of nn.Linear and nn.Embedding always decay; a part with a `parameter_group` of its own leaves the
group of the whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import nn


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """clip: the clipping group, whose gradients are clipped together; lr_scale: factor of the learning rate.

    each: every module that has this group is a clipping group of its own.
    """

    clip: str = "main"
    lr_scale: float = 1.0
    each: bool = False


MAIN = ParameterGroup()


def grouped_parameters(
    module: nn.Module, group: ParameterGroup = MAIN, name: str = ""
) -> Iterator[tuple[nn.Parameter, ParameterGroup, bool]]:
    """Every parameter in module order, with its group and whether it decays; a shared one once per module.

    group, name: of the module, which is a part of another.
    """
    own = getattr(module, "parameter_group", None)
    if own is not None:
        group = dataclasses.replace(own, clip=f"{own.clip} of {name}") if own.each else own
    decays = ("weight",) if isinstance(module, nn.Linear | nn.Embedding) else getattr(module, "decays", ())
    for name, parameter in module.named_parameters(recurse=False):
        yield parameter, group, name in decays
    for part_name, part in module.named_children():
        yield from grouped_parameters(part, group, f"{name}.{part_name}".lstrip("."))


class StepBuffer(nn.Module):
    """step: optimiser steps done, int64 []; total: how many the training will have, 0 where unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))

    def set(self, step: int, total: int) -> None:
        """Set both; called when training starts, and in every optimiser step after the gradients, before the update."""
        self.step.fill_(step)
        self.total.fill_(total)


def set_step(model: nn.Module, step: int, total: int = 0) -> None:
    """Set in every StepBuffer of a model how many optimiser steps are done, and how many there will be."""
    for module in model.modules():
        if isinstance(module, StepBuffer):
            module.set(step, total)
