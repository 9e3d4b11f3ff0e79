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
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import kernels
from kernels import ops
from kernels.autograd import first_order
from kernels.triton_common.operators import operator


def backwards():
    """Those of all autograd Functions in Triton modules, by name; each is an operator for compilers."""
    for module in pkgutil.walk_packages(ops.__path__, "kernels.ops."):
        if "triton" not in module.name.rpartition(".")[2]:
            continue
        for name, x in vars(importlib.import_module(module.name)).items():
            assert not (isinstance(x, type) and issubclass(x, torch.autograd.Function)), name
            form = x.form if isinstance(x, operator) else None
            if isinstance(form, type) and form.__module__ == module.name:
                yield x.name, form.backward


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


FORMS = [(call, "torch", torch.float64) for call in LEARNING]
FORMS += [(call, "numba", torch.float32) for call in LEARNING if operation_cases.has_numba_form(call)]
REFUSALS = "differentiate twice|no autograd formula was registered|derivative for aten::.* is not implemented"


class Learning:
    """A call's inputs that have gradients, states included, and the call as a function of these."""

    def __init__(self, call: operation_cases.Call, dtype: torch.dtype) -> None:
        self.call = operation_cases.as_dtype(call, dtype)
        self.leaves = {name: self.call.tensors[name] for name in call.learned}
        self.state = self.call.options.get("initial_state")
        for i, part in enumerate(operation_cases.tensors_of(self.state)):
            self.leaves[f"initial_state {i}"] = part
        self.leaves = {name: x.detach().clone().requires_grad_() for name, x in self.leaves.items()}
        self.directions = {name: uniform(name, *x.shape).to(dtype) for name, x in self.leaves.items()}

    def outputs(self, backend: str, **changed: Tensor) -> list[Tensor]:
        """A number of each result, with some of the inputs changed."""
        leaves = {**self.leaves, **changed}
        states = [x for name, x in leaves.items() if name.startswith("initial_state ")]
        tensors = {name: leaves.get(name, x) for name, x in self.call.tensors.items()}
        if states:
            tensors["initial_state"] = tuple(states) if isinstance(self.state, tuple) else states[0]
        options = {name: x for name, x in self.call.options.items() if name not in tensors}
        found = operation_cases.tensors_of(dataclasses.replace(self.call, options=options)(backend, tensors))
        found = [x for x in found if x.is_floating_point()]
        return [(x * uniform(str(i), *x.shape).to(x.dtype)).sum() for i, x in enumerate(found)]

    def gradients(self, out: Tensor, **options) -> dict[str, Tensor]:
        """Of a result, by the names of the inputs that it depends on."""
        if not out.requires_grad:
            return {}
        found = torch.autograd.grad(out, list(self.leaves.values()), allow_unused=True, **options)
        return {name: x for name, x in zip(self.leaves, found, strict=True) if x is not None}

    def along(self, gradients: dict[str, Tensor]) -> Tensor:
        """The derivative in the directions of the inputs, fp64."""
        parts = [(x * self.directions[name]).sum() for name, x in gradients.items()]
        return torch.as_tensor(sum(parts), dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "backend", "dtype"), FORMS, ids=[f"{call.title}, {backend}" for call, backend, _ in FORMS]
)
def test_forward_mode_agrees_with_reverse_mode_or_is_refused(call, backend, dtype):
    learning = Learning(call, dtype)
    wanted = [learning.gradients(out, retain_graph=True) for out in learning.outputs(backend)]
    # Without gradients, beside which PyTorch would refuse on its own.
    constants = {name: x.detach() for name, x in learning.leaves.items()}
    for name, x in constants.items():
        with forward_mode.dual_level(), contextlib.suppress(NotImplementedError):
            dual = {name: forward_mode.make_dual(x, learning.directions[name])}
            found = learning.outputs(backend, **{**constants, **dual})
            for out, gradients in zip(found, wanted, strict=True):
                tangent = forward_mode.unpack_dual(out).tangent
                tangent = learning.along({}) if tangent is None else tangent.double()
                torch.testing.assert_close(
                    tangent,
                    learning.along({name: gradients[name]} if name in gradients else {}),
                    rtol=1e-4,
                    atol=1e-6,
                )


@pytest.mark.parametrize(
    ("call", "backend", "dtype"), FORMS, ids=[f"{call.title}, {backend}" for call, backend, _ in FORMS]
)
def test_second_derivatives_are_those_of_the_definition_or_refused(call, backend, dtype):
    """Of each result alone, as another's refusal would hide what is missing of it."""
    learning = Learning(call, dtype)
    for i in range(len(learning.outputs("reference"))):
        wanted = second_derivative(learning, "reference", i)
        try:
            found = second_derivative(learning, backend, i)
        except RuntimeError as error:
            assert re.search(REFUSALS, str(error))  # noqa: PT017 - either outcome is right
        else:
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def second_derivative(learning: Learning, backend: str, i: int) -> Tensor:
    first = learning.along(learning.gradients(learning.outputs(backend)[i].square(), create_graph=True))
    return learning.along(learning.gradients(first))


class Cube(torch.autograd.Function):
    """x³, of whose gradient 3x²·g PyTorch sees x only if it is `linked`."""

    @staticmethod
    def forward(ctx, x, linked):
        ctx.save_for_backward(x if linked else x.detach().clone())
        return x**3

    @staticmethod
    @first_order
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g, None


def test_a_refusal_lies_on_every_way_from_the_gradient():
    x = torch.tensor([2.0], requires_grad=True)

    def gradient(out):
        return torch.autograd.grad(out.sum(), x, create_graph=True)[0]

    assert gradient(Cube.apply(x, True)).item() == 12.0
    with pytest.raises(
        RuntimeError, match="differentiate twice"
    ):  # a constant arrives, and nothing known is of x
        gradient(Cube.apply(x, False)).backward()
    with pytest.raises(RuntimeError, match="differentiate twice"):  # by way of what was saved
        torch.autograd.grad(gradient(Cube.apply(x, True)), x)
    with pytest.raises(RuntimeError, match="differentiate twice"):  # by way of the gradient that arrives
        torch.autograd.grad(gradient(Cube.apply(x, False) ** 2), x)


def test_saved_tensors_are_unpacked_once_as_checkpoints_demand():
    x = torch.tensor([2.0], requires_grad=True)
    out = checkpoint(Cube.apply, x, True, use_reentrant=False)
    assert torch.autograd.grad(out, x, create_graph=True)[0].item() == 12.0


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_constants_under_vmap_have_no_tangent(backend):
    x, weight, counts = normal(1, 5, 4), normal(2, 3, 4), torch.tensor([2, 3])

    def scaled(s):
        return (
            s * torch.func.vmap(lambda y: kernels.grouped_linear(y, weight, counts, backend=backend))(x).sum()
        )

    value, tangent = torch.func.jvp(scaled, (x.new_ones(()),), (x.new_ones(()),))
    assert value == tangent


def test_tangents_are_refused_under_vmap_and_in_compiled_code():
    x, weight, counts = normal(5, 4), normal(2, 3, 4), torch.tensor([2, 3])

    def product(y):
        return kernels.grouped_linear(y, weight, counts, backend="torch")

    batched, compiled = torch.func.vmap(product), torch.compile(product, backend="eager")
    with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
        torch.func.jvp(batched, (x[None],), (x[None],))
    compiled(x)
    with forward_mode.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
        compiled(forward_mode.make_dual(x, x))
