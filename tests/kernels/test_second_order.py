"""Triton kernels have no second derivatives, and say so instead of leaving them out."""

import importlib
import pkgutil

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import normal
from support.triton_cases import DEVICE

import kernels
from kernels import ops
from kernels.triton_common.gradients import first_order


def backwards():
    """Those of all autograd Functions in Triton modules, by name."""
    for module in pkgutil.walk_packages(ops.__path__, "kernels.ops."):
        if not module.name.rpartition(".")[2].startswith("triton_"):
            continue
        for name, x in vars(importlib.import_module(module.name)).items():
            if isinstance(x, type) and issubclass(x, torch.autograd.Function) and x.__module__ == module.name:
                yield f"{module.name}.{name}", x.backward


def test_every_backward_is_marked():
    found = dict(backwards())
    assert len(found) > 12
    marked = first_order(print).__code__
    assert not [name for name, backward in found.items() if backward.__code__ is not marked]


def short_conv(x):
    return kernels.short_conv(x.view(1, 2, 16), torch.ones(16, 3, device=DEVICE), backend="triton")[0]


def delta_rule(x):
    q, gate = x.view(1, 2, 1, 16), x.new_zeros(1, 2, 1)
    return kernels.delta_rule(q, q, q, gate, gate + 0.5, backend="triton")[0]


def sparse_attention(x):
    q = x.view(1, 2, 1, 16)
    indices = torch.tensor([[[0, -1], [0, 1]]], dtype=torch.int32, device=DEVICE)
    return kernels.sparse_attention(q, q, q, indices, backend="triton")


def cayley(x):
    return kernels.cayley(x.view(2, 4, 4), backend="triton")


# With a sum the gradient that arrives is a constant, whatever the kernel makes of it is not.
@pytest.mark.parametrize("loss", [torch.sum, lambda y: y.square().sum()], ids=["sum", "squares"])
@pytest.mark.parametrize("call", [short_conv, delta_rule, sparse_attention, cayley], ids=lambda f: f.__name__)
def test_a_gradient_penalty_is_refused(call, loss):
    x = F.normalize(normal(2, 16, dtype=torch.float32), dim=-1).to(DEVICE).requires_grad_()
    out = loss(call(x))
    (gradient,) = torch.autograd.grad(out, x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        (out + gradient.square().sum()).backward()
