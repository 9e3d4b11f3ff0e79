"""Kernels have first derivatives only; a second one raises instead of being wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor


def first_order(backward: Callable) -> Callable:
    """Decorate the `backward` of an autograd.Function or a custom operator so that its results have no derivative.

    One that is asked for raises RuntimeError. PyTorch's `once_differentiable` is not enough: results of a gradient that
    is a constant, as that of `out.sum()` is, pass for constants there, and where gradients are asked for by their
    inputs, as in `torch.autograd.grad`, no way leads to the error.
    """

    @functools.wraps(backward)
    def call(ctx, *gradients: Tensor | None):
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        ctx = _Unpacked(ctx)
        with torch.no_grad():
            found = backward(ctx, *gradients)
        found = (found,) if isinstance(found, Tensor) else found
        results = [x for x in found if x is not None]
        known = [x for x in (*gradients, *ctx.saved_tensors) if x is not None]
        # A leaf of its own, as all that is known may be constant.
        leaf = torch.ones((), requires_grad=True)
        refused = iter(_Refused.apply(len(results), *results, *known, leaf))
        return tuple(x if x is None else next(refused) for x in found)

    return call


class _Unpacked:
    """A context whose saved tensors are unpacked once, as checkpoints demand."""

    def __init__(self, ctx) -> None:
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str):
        return getattr(self._ctx, name)


class _Refused(torch.autograd.Function):
    """Tensors that depend on all that a `backward` knows, and have no derivative."""

    @staticmethod
    def forward(ctx, count: int, *tensors: Tensor):
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(
            'trying to differentiate twice what has first derivatives only: backend="reference" has others too'
        )
