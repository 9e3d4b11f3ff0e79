"""hyper_coefficients: the scaled product and its Triton kernels against the formula, gradients, precision."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, normal
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, kernels_only

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


slow = pytest.mark.slow


def named_inputs(tokens: int, n: int, width: int, m: int) -> dict[str, torch.Tensor]:
    rows = 2 * n + m
    return {
        "streams": 3 * normal(1, tokens, n, width, seed=1),
        "phi": normal(rows, n * width, seed=2) / (n * width) ** 0.5,
        "scale": torch.tensor([0.7, -1.3, 0.4]),
        "bias": normal(rows, seed=3),
    }


# tokens, n, D, m; a tile has 64 tokens and 64 of their numbers
@pytest.mark.parametrize(
    "size",
    [
        (5, 4, 18, 16),
        pytest.param((70, 2, 3, 4), marks=slow),
        pytest.param((3, 8, 9, 64), marks=slow),
        pytest.param((2, 3, 40, 2), marks=slow),
        (5, 4, 18, 0),
    ],
    ids=str,
)
def test_it_equals_the_definition(size):
    assert_kernel_agrees(hyper_coefficients, named_inputs(*size), torch.float32)


@pytest.mark.parametrize(("gain", "n"), [(0.1, 4), (1e3, 3)], ids=["capped", "free"])
def test_the_cap_of_the_scale(gain, n):
    assert_kernel_agrees(
        partial(hyper_coefficients, cap=(gain, 1.5)), named_inputs(5, n, 18, n * n), torch.float32
    )


@pytest.mark.slow
def test_streams_handed_on_bring_their_gradient():
    """The comparison gives every output a gradient; no operator but the kernel may add them."""
    assert_kernel_agrees(partial(hyper_coefficients, hand_on=True), named_inputs(5, 4, 18, 16), torch.float32)


@slow
def test_batches_and_streams_in_another_order_of_memory():
    args = named_inputs(6, 2, 5, 4)
    args["streams"] = args["streams"].view(3, 2, 2, 5).transpose(0, 1)
    assert_kernel_agrees(hyper_coefficients, args, torch.float32)


@slow
def test_gradients_collect_from_all_tiles_and_spans(monkeypatch):
    """70 tokens, two tiles: for φ a span each, for bias and scale one span; above it is the other way round."""
    from kernels.ops import hyper_coefficients_triton

    monkeypatch.setattr(hyper_coefficients_triton, "SPAN", 64)
    monkeypatch.setattr(hyper_coefficients_triton, "NUMBER_SPANS", 1)
    assert_kernel_agrees(hyper_coefficients, named_inputs(70, 2, 4, 2), torch.float32)


def test_scales_of_zero_have_gradients():
    args = {**named_inputs(3, 2, 10, 4), "scale": torch.zeros(3)}
    limits = {"streams": 1e-30, "phi": 1e-30}  # exactly zero
    assert_kernel_agrees(hyper_coefficients, args, torch.float32, limits=limits)


@slow
def test_large_logits_saturate():
    args = named_inputs(3, 2, 10, 4)
    args["bias"] = torch.tensor([80.0, -80, 80, -80, 1, 2, 3, 4])
    assert_kernel_agrees(hyper_coefficients, args, torch.float32)


@slow
def test_eps_counts():
    assert_kernel_agrees(partial(hyper_coefficients, eps=2.0), named_inputs(5, 2, 10, 4), torch.float32)
    args = {**named_inputs(3, 2, 10, 4), "streams": 1e-4 * normal(1, 3, 2, 10)}
    assert_kernel_agrees(hyper_coefficients, args, torch.float32)


@slow
def test_tokens_of_zeros_have_no_gradient_that_is_not_finite():
    x = torch.zeros(1, 2, 2, 10, device=DEVICE, requires_grad=True)
    phi, scale, bias = (torch.ones(shape, device=DEVICE) for shape in ((8, 20), 3, 8))
    with kernels_only():
        *_, res = hyper_coefficients(x, phi, scale, bias, backend="triton")
    res.backward(torch.ones_like(res))
    assert torch.equal(res, torch.ones_like(res))
    torch.testing.assert_close(x.grad, torch.full_like(x, 4e3))


@HALF
@slow
def test_half_precision(dtype):
    """Scale and bias stay fp32, as the residual schemes have them, and φ where streams are half precision alone."""
    args = named_inputs(5, 4, 18, 16)
    assert_kernel_agrees(hyper_coefficients, args, dtype)
    assert_kernel_agrees(hyper_coefficients, args, dtype, keep=["phi", "scale", "bias"])


@pytest.mark.gpu
def test_gradients_are_the_same_bits_at_every_run():
    """At a size where every program of the grid runs at its own time."""
    leaves = [x.cuda().float().requires_grad_() for x in named_inputs(32768, 4, 768, 16).values()]
    upstream = [torch.randn(1, 32768, width, device="cuda") for width in (4, 4, 16)]

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(hyper_coefficients(*leaves, backend="triton"), leaves, upstream)

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))
