"""Kernels have first derivatives only; a second one raises instead of being wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def first_order(backward: Callable) -> Callable:
    """Decorate the `backward` of an autograd.Function so that a derivative of its results raises RuntimeError.

    PyTorch's `once_differentiable` checks only whether the arguments require a gradient. Those of
    `out.sum()` require none, and then results that depend on the saved inputs would pass for constants.
    """
    backward = once_differentiable(backward)

    @functools.wraps(backward)
    def call(ctx, *gradients: Tensor | None):
        if torch.is_grad_enabled():
            gradients = tuple(x if x is None else x.detach().requires_grad_() for x in gradients)
        return backward(ctx, *gradients)

    return call
