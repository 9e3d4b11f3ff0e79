"""sinkhorn's Triton kernels against the definition: sizes, iterations, many matrices, large inputs, refusals."""

from functools import partial

import pytest
import torch
from support.kernel_cases import normal
from support.margins import below
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, kernels_only

from kernels import sinkhorn

slow = pytest.mark.slow


def raw(n: int, size: float = 1.0) -> dict[str, torch.Tensor]:
    return {"raw": size * normal(2, 3, n, n)}


@pytest.mark.parametrize(("n", "iters"), [(4, 3), *(pytest.param(n, 2, marks=slow) for n in (1, 2, 3, 8))])
def test_iterations_equal_the_definition(n, iters):
    assert_kernel_agrees(partial(sinkhorn, iters=iters), raw(n, 2.0), torch.float32)


@slow
def test_twenty_iterations():
    """All of them are differentiated: at this spread the gradient of fewer differs."""
    assert_kernel_agrees(sinkhorn, raw(4, 3.0), torch.float32)


@slow
def test_more_matrices_than_a_program_has():
    assert_kernel_agrees(partial(sinkhorn, iters=1), {"raw": normal(130, 4, 4)}, torch.float32)


@HALF
@slow
def test_half_precision(dtype):
    call = partial(sinkhorn, iters=3)
    assert_kernel_agrees(call, raw(4), dtype)
    assert call(raw(4)["raw"].to(DEVICE, dtype), backend="triton").dtype == torch.float32


@slow
def test_any_finite_input_gives_finite_rows():
    x = (1e4 * normal(20, 4, 4, device=DEVICE).float()).requires_grad_()
    with kernels_only():
        m = sinkhorn(x, iters=5, backend="triton")
    m.backward(torch.ones_like(m))
    below((m.sum(-1) - 1).abs().max(), 5e-3)
    assert x.grad.isfinite().all()
