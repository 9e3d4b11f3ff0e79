"""hyper_coefficients: the scaled product against the normalised input, its gradients, precision and errors."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, normal

from kernels import hyper_coefficients


def inputs(n: int = 4, m: int = 16, width: int = 6, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    rows = 2 * n + m
    return [
        3 * normal(2, 5, n, width, dtype=dtype, seed=1),
        normal(rows, n * width, dtype=dtype, seed=2),
        normal(3, dtype=dtype, seed=3),
        normal(rows, dtype=dtype, seed=4),
    ]


def joined(*args, **options) -> torch.Tensor:
    """All three outputs side by side."""
    return torch.cat(hyper_coefficients(*args, **options), -1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("eps", [1e-6, 2.0])
@pytest.mark.parametrize(("n", "m"), [(2, 4), (4, 16), (4, 2), (4, 0), (8, 64)])
def test_it_equals_its_definition_with_all_gradients(n, m, eps, dtype):
    pair = [partial(joined, eps=eps, backend=backend) for backend in ("torch", "reference")]
    assert_agree(*pair, inputs(n, m, dtype=dtype))


@pytest.mark.parametrize("gain", [0.1, 1e3], ids=["capped", "free"])
def test_a_cap_is_the_formula_and_has_its_gradients(gain):
    x, phi, scale, bias = inputs(3, 9)
    skew = phi[6:].view(3, 3, -1) - phi[6:].view(3, 3, -1).transpose(0, 1)
    bound = scale[2].abs() * 1.5 * (skew / 2).norm() * phi.shape[1] ** 0.5
    wanted = scale * torch.tensor([1, 1, gain / max(gain, float(bound))])
    pair = [partial(joined, cap=(gain, 1.5), backend=backend) for backend in ("torch", "reference")]
    for call in pair:
        torch.testing.assert_close(call(x, phi, scale, bias), joined(x, phi, wanted, bias))
    assert_agree(*pair, inputs(3, 9))
    with pytest.raises(ValueError, match="2n \\+ n² = 24 rows, got 23"):
        hyper_coefficients(*inputs(4, 15), cap=(0.1, 1.0))


def test_the_definition_is_the_formula():
    x, phi, scale, bias = inputs(2, 3)
    token = x[1, 2].flatten()
    raw = phi @ token / (token.square().mean() + 1e-6).sqrt()
    pre, post, res = (y[1, 2] for y in hyper_coefficients(x, phi, scale, bias, backend="reference"))
    torch.testing.assert_close(pre, 1 / (1 + torch.exp(-scale[0] * raw[:2] - bias[:2])))
    torch.testing.assert_close(post, 2 / (1 + torch.exp(-scale[1] * raw[2:4] - bias[2:4])))
    torch.testing.assert_close(res, scale[2] * raw[4:] + bias[4:])


def test_gradients_are_the_derivatives_at_zero_too():
    x, phi, scale, bias = (y.requires_grad_() for y in inputs(2, 3, 4))
    assert torch.autograd.gradcheck(hyper_coefficients, (x, phi, scale, bias))
    assert torch.autograd.gradcheck(
        partial(hyper_coefficients, x, phi), (torch.zeros_like(scale).requires_grad_(), bias)
    )
    zero = torch.zeros_like(x).requires_grad_()
    (grad,) = torch.autograd.grad(joined(zero, phi, scale, bias).sum(), phi)
    assert not grad.any()


def test_scales_of_zero_leave_the_biases():
    x, phi, scale, bias = (y.requires_grad_() for y in inputs())
    pre, post, res = hyper_coefficients(x, phi, torch.zeros_like(scale), bias)
    torch.testing.assert_close(pre, torch.sigmoid(bias[:4]).expand_as(pre))
    torch.testing.assert_close(post, 2 * torch.sigmoid(bias[4:8]).expand_as(post))
    torch.testing.assert_close(res, bias[8:].expand_as(res))


def test_half_precision_and_autocast_are_computed_in_fp32():
    args = [y.bfloat16() for y in inputs()]
    wanted = joined(*(y.float() for y in args))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(joined(*args), wanted)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["fp64", "fp32", "bf16"]
)
def test_streams_are_handed_on_as_they_are(dtype, backend):
    x, *rest = inputs(dtype=dtype)
    handed = hyper_coefficients(x, *(y.to(torch.float32) if dtype is torch.bfloat16 else y for y in rest),
                                hand_on=True, backend=backend)[3]  # fmt: skip
    assert handed.dtype == dtype
    assert torch.equal(handed, x)
