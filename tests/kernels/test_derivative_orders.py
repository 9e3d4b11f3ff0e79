"""What kernels have no derivative of, second or in forward mode, they refuse instead of leaving it out."""

import contextlib
import dataclasses
import importlib
import pkgutil
import re

import pytest
import torch
import torch.autograd.forward_ad as forward_mode
import torch.nn.functional as F
from support import operation_cases
from support.formula import uniform
from support.kernel_cases import normal
from support.triton_cases import DEVICE

import kernels
from kernels import ops
from kernels.gradients import first_order


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


LEARNING = [call for call in operation_cases.calls() if call.learned]


def has_numba_form(call: operation_cases.Call) -> bool:
    if "cu_seqlens" in call.options:
        return False
    attends = (
        call.operation is kernels.indexed_attention
        and call.tensors["q"].shape[1] == call.tensors["k"].shape[1]
    )
    return attends or call.operation is operation_cases.nsa


FORMS = [(call, "torch", torch.float64) for call in LEARNING]
FORMS += [(call, "numba", torch.float32) for call in LEARNING if has_numba_form(call)]
REFUSALS = "differentiate twice|no autograd formula was registered|derivative for aten::.* is not implemented"


def prepared(call: operation_cases.Call, dtype: torch.dtype):
    """The call in this dtype, its tensors that are learned, and a direction for each of these."""
    call = dataclasses.replace(operation_cases.as_dtype(call, dtype), learned=call.learned)
    learned = {name: call.tensors[name].detach().clone().requires_grad_() for name in call.learned}
    return call, learned, {name: uniform(name, *x.shape).to(dtype) for name, x in learned.items()}


def weighted(outputs) -> torch.Tensor:
    """A number that all floating outputs enter."""
    found = [x for x in operation_cases.tensors_of(outputs) if x.is_floating_point()]
    return sum((x * uniform(str(i), *x.shape).to(x.dtype)).sum() for i, x in enumerate(found))


def along(gradients, directions) -> torch.Tensor:
    parts = ((g * d).sum() for g, d in zip(gradients, directions.values(), strict=True) if g is not None)
    return torch.as_tensor(sum(parts), dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "backend", "dtype"), FORMS, ids=[f"{call.title}, {backend}" for call, backend, _ in FORMS]
)
def test_forward_mode_agrees_with_reverse_mode_or_is_refused(call, backend, dtype):
    call, learned, directions = prepared(call, dtype)
    out = weighted(call(backend, {**call.tensors, **learned}))
    wanted = along(torch.autograd.grad(out, list(learned.values()), allow_unused=True), directions)
    with forward_mode.dual_level():
        duals = {name: forward_mode.make_dual(x.detach(), directions[name]) for name, x in learned.items()}
        with contextlib.suppress(NotImplementedError):
            tangent = forward_mode.unpack_dual(weighted(call(backend, {**call.tensors, **duals}))).tangent
            torch.testing.assert_close(torch.zeros_like(wanted) if tangent is None else tangent, wanted)


@pytest.mark.parametrize(
    ("call", "backend", "dtype"), FORMS, ids=[f"{call.title}, {backend}" for call, backend, _ in FORMS]
)
def test_second_derivatives_are_those_of_the_definition_or_refused(call, backend, dtype):
    call, learned, directions = prepared(call, dtype)

    def second(form: str):
        out = weighted(call(form, {**call.tensors, **learned})).square()
        first = torch.autograd.grad(out, list(learned.values()), create_graph=True, allow_unused=True)
        found = torch.autograd.grad(along(first, directions), list(learned.values()), allow_unused=True)
        return along(found, directions)

    try:
        found = second(backend)
    except RuntimeError as error:
        assert re.search(REFUSALS, str(error))  # noqa: PT017 - either outcome is right
    else:
        torch.testing.assert_close(found, second("reference"))
