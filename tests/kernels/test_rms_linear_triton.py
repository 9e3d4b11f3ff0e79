"""rms_linear's Triton kernels against the definition: widths, spans, small and large vectors, refusals."""

from functools import partial

import pytest
import torch
from kernel_cases import normal
from triton_cases import DEVICE, HALF, assert_kernel_agrees

from kernels import rms_linear

slow = pytest.mark.slow


def inputs(vectors: int, width: int, out: int) -> dict[str, torch.Tensor]:
    return {"x": 3 * normal(1, vectors, width, seed=1), "weight": normal(out, width, seed=2)}


# vectors, K, N; a tile has 64 vectors and 64 of their numbers, a span 512 vectors
@pytest.mark.parametrize(
    "size",
    [(5, 72, 24), pytest.param((70, 12, 1), marks=slow), pytest.param((1, 200, 33), marks=slow)],
    ids=str,
)
def test_it_equals_the_definition(size):
    assert_kernel_agrees(rms_linear, inputs(*size), torch.float32)


@slow
def test_the_weight_collects_from_all_spans():
    assert_kernel_agrees(rms_linear, inputs(600, 8, 3), torch.float32)


@slow
def test_eps_counts():
    assert_kernel_agrees(partial(rms_linear, eps=2.0), inputs(5, 20, 8), torch.float32)
    assert_kernel_agrees(rms_linear, {**inputs(3, 20, 8), "x": 1e-4 * normal(1, 3, 20)}, torch.float32)


@slow
def test_vectors_of_zeros_have_no_gradient_that_is_not_finite():
    x, weight = torch.zeros(2, 20, device=DEVICE, requires_grad=True), torch.ones(3, 20, device=DEVICE)
    y = rms_linear(x, weight, backend="triton")
    y.sum().backward()
    assert not y.any()
    torch.testing.assert_close(x.grad, torch.full_like(x, 3e3))


@HALF
@slow
def test_half_precision(dtype):
    assert_kernel_agrees(rms_linear, inputs(5, 72, 24), dtype)
    assert_kernel_agrees(rms_linear, inputs(5, 72, 24), dtype, keep=["weight"])


def test_too_many_outputs_are_refused():
    with pytest.raises(ValueError, match="widths of at most 256, got 257"):
        rms_linear(torch.zeros(2, 4, device=DEVICE), torch.zeros(257, 4, device=DEVICE), backend="triton")


@pytest.mark.gpu
def test_gradients_are_the_same_bits_at_every_run():
    """At a size where every program of the grid runs at its own time."""
    leaves = [x.cuda().float().requires_grad_() for x in inputs(32768, 3072, 24).values()]
    dy = torch.randn(1, 32768, 24, device="cuda")

    def gradients() -> list[torch.Tensor]:
        return torch.autograd.grad(rms_linear(*leaves, backend="triton"), leaves, dy)

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))
