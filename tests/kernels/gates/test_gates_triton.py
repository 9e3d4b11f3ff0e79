"""Triton kernels of gates against the definition: several tiles, parts of one product, half precision, errors."""

from functools import partial

import pytest
import torch
from support.kernel_cases import normal
from support.triton_cases import HALF, assert_kernel_agrees

from kernels import delta_gates, gated_norm, swiglu


def inputs(*shape: int) -> dict[str, torch.Tensor]:
    return {"gate": 3 * normal(*shape, seed=1), "up": normal(*shape, seed=2)}


@pytest.mark.parametrize("shape", [(2, 5, 7), (9, 530), (6,), (0, 4)], ids=str)
def test_kernels_equal_the_definition(shape):
    assert_kernel_agrees(swiglu, inputs(*shape), torch.float32)


@HALF
def test_half_precision(dtype):
    assert_kernel_agrees(swiglu, inputs(3, 40), dtype)


def test_parts_of_one_product_are_read_where_they_stand():
    joint = normal(2, 3, 20, dtype=torch.float32).requires_grad_()
    found, wanted = (swiglu(*joint.chunk(2, -1), backend=name) for name in ("triton", "reference"))
    torch.testing.assert_close(found, wanted)
    pair = (torch.autograd.grad(y.square().sum(), joint)[0] for y in (found, wanted))
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize(("gate", "up"), [((2, 3), (2, 4)), ((2, 3), (3,))], ids=["width", "axes"])
def test_shapes_that_differ_are_refused(gate, up):
    with pytest.raises(ValueError, match=r"gate and up of the same shape and dtype"):
        swiglu(torch.zeros(gate), torch.zeros(up))


def gates(
    shape: tuple[int, ...], rates: tuple[int, ...], strength: tuple[int, ...]
) -> dict[str, torch.Tensor]:
    """Of softplus both ends: where it is its argument, and where it is small."""
    raw = torch.linspace(-12, 30, 2 * 70)[torch.randperm(140, generator=torch.Generator().manual_seed(0))]
    return {
        "raw": raw.view(2, 70, *(1 for _ in shape)) + normal(2, 70, *shape, seed=1),
        "log_rate": 0.5 * normal(*rates, seed=2),
        "bias": normal(*shape, seed=3),
        "strength": 3 * normal(2, 70, *strength, seed=4),
    }


GATES = {
    "a rate a head": ((3, 20), (3, 1), (3,)),
    "a rate a number": ((5, 2), (5, 2), (5, 2)),
    "a rate of each of many": ((130,), (130,), (9,)),
}


@pytest.mark.parametrize("case", GATES)
def test_gates_of_a_delta_rule_equal_the_definition(case):
    assert_kernel_agrees(partial(delta_gates, top=2.0), gates(*GATES[case]), torch.float32)


NORMS = {"with a gate": ((2, 35, 3, 20), True), "without": ((2, 35, 3, 20), False), "wide": ((9, 130), True)}


def norm_inputs(shape: tuple[int, ...], has_gate: bool) -> dict[str, torch.Tensor]:
    logits = {"logits": 3 * normal(*shape, seed=3)} if has_gate else {}
    return {"o": 2 * normal(*shape, seed=1), "gain": 1 + normal(shape[-1], seed=2), **logits}


@pytest.mark.parametrize("case", NORMS)
def test_gated_norms_equal_the_definition(case):
    assert_kernel_agrees(partial(gated_norm, eps=1e-5), norm_inputs(*NORMS[case]), torch.float32)


@HALF
def test_gates_and_norms_in_half_precision(dtype):
    assert_kernel_agrees(delta_gates, gates(*GATES["a rate a head"]), dtype, keep=("log_rate", "bias"))
    assert_kernel_agrees(gated_norm, norm_inputs(*NORMS["with a gate"]), dtype, keep=("gain",))


def test_gates_and_norms_read_parts_of_one_product_where_they_stand():
    joint = normal(2, 9, 40, dtype=torch.float32).requires_grad_()
    rate, bias = normal(2, 1, dtype=torch.float32, seed=1), normal(2, 8, dtype=torch.float32, seed=2)
    found = []
    for name in ("triton", "reference"):
        raw, strength, o, logits = joint.split([16, 2, 6, 16], -1)
        g, beta = delta_gates(raw.unflatten(-1, (2, 8)), rate, bias, strength, backend=name)
        y = gated_norm(g, bias[0], logits.unflatten(-1, (2, 8)), backend=name)
        loss = y.square().sum() + beta.sum() + o.sum()
        found.append((y, *torch.autograd.grad(loss, joint)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (delta_gates, ((2, 3, 4), (4, 1), (4,), (2, 3, 4))),
        (delta_gates, ((2, 3, 4, 5), (5, 1), (4, 5), (2, 3, 4))),
        (delta_gates, ((2, 3, 4), (4,), (4,), (2, 4, 4))),
        (gated_norm, ((2, 3), (2,))),
        (gated_norm, ((2, 3), (3,), (3,))),
    ],
)
def test_shapes_of_gates_that_do_not_fit_are_refused(call, shapes):
    with pytest.raises(ValueError, match=rf"{call.__name__} needs .*, got \({shapes[0][0]}, "):
        call(*map(torch.zeros, shapes))
