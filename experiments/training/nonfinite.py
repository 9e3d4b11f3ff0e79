"""Losses and gradients that are NaN or infinite: the step, and the module where they began."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from experiments.parallel.sharded import whole

UNKNOWN = "loss"
"""What `first_bad_module` calls the place where no module's output is to blame."""


class NonFinite(RuntimeError):
    """Training met NaN or infinity. `step` and `module` say where; the last good checkpoint is untouched."""

    def __init__(self, what: str, step: int, module: str) -> None:
        super().__init__(
            f"{what} at step {step}, first in module '{module}'; the last good checkpoint is kept. "
            "Lower optim.lr, raise optim.warmup_steps, or start again with another seed"
        )
        self.step, self.module = step, module


def first_bad_module(model: nn.Module, forward: Callable[[], Any]) -> str:
    """The first module whose output is not finite though its input was, by running `forward` again with hooks.

    A module whose own weights are not finite is named at once.
    """
    for name, parameter in model.named_parameters():
        if not whole(torch.isfinite(parameter).all()):
            return f"{name} (its weights are not finite)"
    found: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and _finite(inputs) and not _finite(output):
                found.append(name)

        return hook

    handles = [m.register_forward_hook(watch(n or "model")) for n, m in model.named_modules()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else UNKNOWN


def first_bad_gradient(model: nn.Module) -> str:
    """The last parameter in module order with a gradient that is not finite: backward reached it first."""
    found = ((n, p.grad) for n, p in model.named_parameters() if p.grad is not None)
    bad = [name for name, grad in found if not whole(torch.isfinite(grad).all())]
    return f"{bad[-1]} (its gradient)" if bad else "gradient norm"


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(_finite(v) for v in value.values())
    if isinstance(value, list | tuple):
        return all(_finite(v) for v in value)
    return True
