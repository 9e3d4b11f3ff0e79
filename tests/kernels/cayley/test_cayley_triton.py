"""cayley's Triton kernels against the definition: sizes, many matrices, large inputs, refusals."""

import pytest
import torch
from support.kernel_cases import normal
from support.margins import below
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees

from kernels import cayley

slow = pytest.mark.slow
EVERY_N = [4, *(pytest.param(n, marks=slow) for n in (1, 2, 3, 5, 8))]


def raw(n: int) -> dict[str, torch.Tensor]:
    return {"raw": normal(2, 3, n, n)}


@pytest.mark.parametrize("n", EVERY_N)
def test_rotations_equal_the_solve(n):
    assert_kernel_agrees(cayley, raw(n), torch.float32)


@slow
def test_more_matrices_than_a_program_has():
    assert_kernel_agrees(cayley, {"raw": normal(130, 4, 4)}, torch.float32)


@HALF
@slow
def test_half_precision(dtype):
    assert_kernel_agrees(cayley, raw(4), dtype)
    assert cayley(raw(4)["raw"].to(DEVICE, dtype), backend="triton").dtype == torch.float32


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
