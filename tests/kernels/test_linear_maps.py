"""Linear maps of one input and RMSNorm in fewer passes: values, first and second derivatives, casts."""

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import normal
from torch import Tensor

from kernels.autograd import linears, rms_norm

EPS = 1e-5


def maps(dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    weights = [normal(n, 6, dtype=dtype, seed=n) for n in (5, 3, 4)]
    return normal(2, 7, 6, dtype=dtype), weights, [normal(5, dtype=dtype), None, normal(4, dtype=dtype)]


def one_by_one(x: Tensor, weights: list[Tensor], biases: list[Tensor | None]) -> list[Tensor]:
    return [F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def gradients(call, x: Tensor, weights: list[Tensor], biases: list[Tensor | None]) -> list[Tensor]:
    leaves = [y.detach().clone().requires_grad_() for y in (x, *weights)]
    out = call(leaves[0], leaves[1:], biases)
    total = sum((y * normal(*y.shape, seed=9)).sum() for y in out)
    return [*(y.detach() for y in out), *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("which", [slice(0, 3), slice(0, 1)], ids=["three", "one"])
def test_maps_of_one_input_equal_those_one_by_one(which):
    x, weights, biases = maps()
    wanted = gradients(one_by_one, x, weights[which], biases[which])
    for got, want in zip(gradients(linears, x, weights[which], biases[which]), wanted, strict=True):
        torch.testing.assert_close(got, want)


def test_maps_have_derivatives_of_second_order():
    x, weights, _ = maps()
    leaves = [y.requires_grad_() for y in (x, *weights)]
    call = lambda x, *weights: tuple(linears(x, weights, [None] * 3))  # noqa: E731
    assert torch.autograd.gradgradcheck(call, leaves)


def test_a_map_that_nobody_reads_has_no_gradient():
    x, weights, biases = maps()
    leaves = [y.requires_grad_() for y in weights]
    linears(x, leaves, biases)[1].sum().backward()
    assert leaves[0].grad is None
    torch.testing.assert_close(leaves[1].grad, x.sum((0, 1)).expand(3, 6))


def test_under_autocast_there_is_one_product_of_one_cast():
    x, weights, biases = maps(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = gradients(one_by_one, x, weights, biases)
        found = gradients(linears, x, weights, biases)
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_the_norm_and_its_gradients_are_pytorchs():
    x, gain = normal(3, 5, 8).requires_grad_(), normal(8, seed=1).requires_grad_()
    found, wanted = rms_norm(x, gain, EPS), F.rms_norm(x, gain.shape, gain, EPS)
    direction = normal(3, 5, 8, seed=2)
    torch.testing.assert_close(found, wanted)
    for got, want in zip(
        *(torch.autograd.grad(y, (x, gain), direction) for y in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(got, want)


def test_the_norm_has_derivatives_of_second_order():
    x, gain = normal(2, 5).requires_grad_(), normal(5, seed=1).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, gain: rms_norm(x, gain, 0.1), (x, gain))


def test_the_norm_of_zeros_and_of_nan():
    x = torch.zeros(3, 4, requires_grad=True)
    with torch.no_grad():
        x[1, 2] = torch.nan
    y = rms_norm(x, torch.ones(4), EPS)
    y.sum().backward()
    assert y.isnan().any(1).tolist() == [False, True, False]
    assert x.grad.isnan().any(1).tolist() == [False, True, False]
