"""cayley's and sinkhorn's Triton kernels against the definitions: sizes, many matrices, large inputs, refusals."""

from functools import partial

import pytest
import torch
from support.kernel_cases import normal
from support.margins import below
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, kernels_only

from kernels import cayley, sinkhorn

slow = pytest.mark.slow
EVERY_N = [4, *(pytest.param(n, marks=slow) for n in (1, 2, 3, 5, 8))]


def raw(n: int, size: float = 1.0) -> dict[str, torch.Tensor]:
    return {"raw": size * normal(2, 3, n, n)}


@pytest.mark.parametrize("n", EVERY_N)
def test_rotations_equal_the_solve(n):
    assert_kernel_agrees(cayley, raw(n), torch.float32)


@pytest.mark.parametrize(("n", "iters"), [(4, 3), *(pytest.param(n, 2, marks=slow) for n in (1, 2, 3, 8))])
def test_iterations_equal_the_definition(n, iters):
    assert_kernel_agrees(partial(sinkhorn, iters=iters), raw(n, 2.0), torch.float32)


@slow
def test_twenty_iterations():
    """All of them are differentiated: at this spread the gradient of fewer differs."""
    assert_kernel_agrees(sinkhorn, raw(4, 3.0), torch.float32)


@slow
def test_more_matrices_than_a_program_has():
    many = {"raw": normal(130, 4, 4)}
    assert_kernel_agrees(cayley, many, torch.float32)
    assert_kernel_agrees(partial(sinkhorn, iters=1), many, torch.float32)


@HALF
@slow
def test_half_precision(dtype):
    for call in (cayley, partial(sinkhorn, iters=3)):
        assert_kernel_agrees(call, raw(4), dtype)
        assert call(raw(4)["raw"].to(DEVICE, dtype), backend="triton").dtype == torch.float32


@slow
@pytest.mark.parametrize("size", [1e2, 1e8])
def test_the_closed_form_stays_orthogonal_however_large_its_input(size):
    q = cayley(size * normal(50, 4, 4, device=DEVICE).float(), backend="triton")
    below((q.mT @ q - torch.eye(4, device=DEVICE)).abs().max(), 4e-6)


@slow
def test_elimination_chooses_its_pivots():
    """The first entry is 1 among thousands: taken as it comes, it would cost all digits."""
    for n in (2, 3, 8):
        q = cayley(1e3 * normal(20, n, n, device=DEVICE).float(), backend="triton")
        below((q.mT @ q - torch.eye(n, device=DEVICE)).abs().max(), 0.02)


@slow
def test_any_finite_input_gives_finite_rows():
    x = (1e4 * normal(20, 4, 4, device=DEVICE).float()).requires_grad_()
    with kernels_only():
        m = sinkhorn(x, iters=5, backend="triton")
    m.backward(torch.ones_like(m))
    below((m.sum(-1) - 1).abs().max(), 5e-3)
    assert x.grad.isfinite().all()


def test_larger_matrices_are_refused():
    for call in (cayley, sinkhorn):
        with pytest.raises(ValueError, match="needs n of at most 8, got 9"):
            call(torch.zeros(9, 9, device=DEVICE), backend="triton")
