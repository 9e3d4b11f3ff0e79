"""hyper_coefficients' Triton kernels against the definition: streams, schemes, spans, small tokens, refusals."""

from functools import partial

import pytest
import torch
from support.kernel_cases import normal
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, kernels_only

from kernels import hyper_coefficients

slow = pytest.mark.slow


def inputs(tokens: int, n: int, width: int, m: int) -> dict[str, torch.Tensor]:
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
    assert_kernel_agrees(hyper_coefficients, inputs(*size), torch.float32)


@pytest.mark.parametrize(("gain", "n"), [(0.1, 4), (1e3, 3)], ids=["capped", "free"])
def test_the_cap_of_the_scale(gain, n):
    assert_kernel_agrees(partial(hyper_coefficients, cap=(gain, 1.5)), inputs(5, n, 18, n * n), torch.float32)


@pytest.mark.slow
def test_streams_handed_on_bring_their_gradient():
    """The comparison gives every output a gradient; no operator but the kernel may add them."""
    assert_kernel_agrees(partial(hyper_coefficients, hand_on=True), inputs(5, 4, 18, 16), torch.float32)


@slow
def test_batches_and_streams_in_another_order_of_memory():
    args = inputs(6, 2, 5, 4)
    args["streams"] = args["streams"].view(3, 2, 2, 5).transpose(0, 1)
    assert_kernel_agrees(hyper_coefficients, args, torch.float32)


@slow
def test_gradients_collect_from_all_tiles_and_spans(monkeypatch):
    """70 tokens, two tiles: for φ a span each, for bias and scale one span; above it is the other way round."""
    from kernels.ops import hyper_coefficients_triton

    monkeypatch.setattr(hyper_coefficients_triton, "SPAN", 64)
    monkeypatch.setattr(hyper_coefficients_triton, "NUMBER_SPANS", 1)
    assert_kernel_agrees(hyper_coefficients, inputs(70, 2, 4, 2), torch.float32)


def test_scales_of_zero_have_gradients():
    args = {**inputs(3, 2, 10, 4), "scale": torch.zeros(3)}
    limits = {"streams": 1e-30, "phi": 1e-30}  # exactly zero
    assert_kernel_agrees(hyper_coefficients, args, torch.float32, limits=limits)


@slow
def test_large_logits_saturate():
    args = inputs(3, 2, 10, 4)
    args["bias"] = torch.tensor([80.0, -80, 80, -80, 1, 2, 3, 4])
    assert_kernel_agrees(hyper_coefficients, args, torch.float32)


@slow
def test_eps_counts():
    assert_kernel_agrees(partial(hyper_coefficients, eps=2.0), inputs(5, 2, 10, 4), torch.float32)
    args = {**inputs(3, 2, 10, 4), "streams": 1e-4 * normal(1, 3, 2, 10)}
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
    args = inputs(5, 4, 18, 16)
    assert_kernel_agrees(hyper_coefficients, args, dtype)
    assert_kernel_agrees(hyper_coefficients, args, dtype, keep=["phi", "scale", "bias"])


@pytest.mark.gpu
def test_gradients_are_the_same_bits_at_every_run():
    """At a size where every program of the grid runs at its own time."""
    leaves = [x.cuda().float().requires_grad_() for x in inputs(32768, 4, 768, 16).values()]
    upstream = [torch.randn(1, 32768, width, device="cuda") for width in (4, 4, 16)]

    def gradients() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(hyper_coefficients(*leaves, backend="triton"), leaves, upstream)

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))
