"""sinkhorn: log space and Triton kernels against the definition, what its sums are, and what they are not."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, normal
from support.margins import above, below
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees, kernels_only

from kernels import sinkhorn

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])


def column_error(m: torch.Tensor) -> torch.Tensor:
    """How far column sums are from 1, [...]."""
    return (m.sum(-2) - 1).abs().amax(-1)


@pytest.mark.parametrize("n", [1, 2, 4, 5])
@pytest.mark.parametrize("iters", [1, 20])
@dtypes
def test_log_space_equals_the_definition_with_all_gradients(n, iters, dtype):
    call = partial(sinkhorn, iters=iters)
    assert_agree(
        partial(call, backend="torch"), partial(call, backend="reference"), [normal(3, 5, n, n, dtype=dtype)]
    )


def test_columns_come_first_then_rows():
    raw = normal(4, 4)
    m = raw.exp()
    m = m / m.sum(0)
    m = m / m.sum(1, keepdim=True)
    torch.testing.assert_close(sinkhorn(raw, iters=1), m)


@pytest.mark.parametrize(("spread", "limit"), [(1.0, 1e-3), (3.0, 0.2)])
def test_rows_sum_to_one_and_columns_nearly(spread, limit, record_property):
    """Mean over matrices of the largest column error after 20 iterations, n = 4."""
    m = sinkhorn(spread * normal(20_000, 4, 4).float())
    assert (m >= 0).all()
    below((m.sum(-1) - 1).abs().max(), 2e-6)  # four quotients and their sum: some units of 6e-8
    error = column_error(m)
    record_property("column_error_mean", error.mean().item())
    record_property("column_error_max", error.max().item())
    assert error.mean() < limit
    above(error.max(), 1e-6, "columns are not exact: SPEC says to report them")


def test_more_iterations_bring_the_columns_nearer():
    raw = 3 * normal(500, 4, 4)
    errors = [column_error(sinkhorn(raw, iters=iters)).mean() for iters in (1, 5, 20, 200)]
    assert errors == sorted(errors, reverse=True)


def test_four_times_the_identity_has_0_948_on_the_diagonal():
    m = sinkhorn(4 * torch.eye(4, dtype=torch.float64))
    assert m.diagonal().tolist() == pytest.approx([0.948] * 4, abs=5e-4)
    torch.testing.assert_close(m, m.mT)
    below(column_error(m), 1e-14)


def test_a_doubly_stochastic_matrix_stays():
    m = sinkhorn(normal(4, 4), iters=2000)
    torch.testing.assert_close(sinkhorn(m.log()), m)


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_any_finite_input_gives_finite_rows(size):
    """exp of it is infinite or leaves a column without anything to divide by."""
    raw = (size * normal(200, 4, 4).float()).requires_grad_()
    m = sinkhorn(raw)
    m.square().sum().backward()
    below((m.sum(-1) - 1).abs().max(), 1e-5)
    assert raw.grad.isfinite().all()


def test_equal_shifts_of_a_row_or_a_column_change_nothing_in_the_limit():
    raw = normal(4, 4)
    shifted = raw + normal(4, 1, seed=1) + normal(1, 4, seed=2)
    torch.testing.assert_close(sinkhorn(shifted, iters=500), sinkhorn(raw, iters=500))


def test_sixteen_bit_inputs_are_computed_in_fp32():
    raw = normal(20, 4, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        m = sinkhorn(raw)
    assert m.dtype == torch.float32
    torch.testing.assert_close(m, sinkhorn(raw.float()), rtol=0, atol=0)


def test_twenty_iterations_unless_asked():
    raw = 2 * normal(5, 4, 4)
    assert torch.equal(sinkhorn(raw), sinkhorn(raw, iters=20))
    assert not torch.equal(sinkhorn(raw), sinkhorn(raw, iters=19))


slow = pytest.mark.slow


def as_input(n: int, size: float = 1.0) -> dict[str, torch.Tensor]:
    return {"raw": size * normal(2, 3, n, n)}


@pytest.mark.parametrize(("n", "iters"), [(4, 3), *(pytest.param(n, 2, marks=slow) for n in (1, 2, 3, 8))])
def test_iterations_equal_the_definition(n, iters):
    assert_kernel_agrees(partial(sinkhorn, iters=iters), as_input(n, 2.0), torch.float32)


@slow
def test_twenty_iterations():
    """All of them are differentiated: at this spread the gradient of fewer differs."""
    assert_kernel_agrees(sinkhorn, as_input(4, 3.0), torch.float32)


@slow
def test_more_matrices_than_a_program_has():
    assert_kernel_agrees(partial(sinkhorn, iters=1), {"raw": normal(130, 4, 4)}, torch.float32)


@HALF
@slow
def test_half_precision(dtype):
    call = partial(sinkhorn, iters=3)
    assert_kernel_agrees(call, as_input(4), dtype)
    assert call(as_input(4)["raw"].to(DEVICE, dtype), backend="triton").dtype == torch.float32


@slow
def test_kernels_give_finite_rows():
    x = (1e4 * normal(20, 4, 4, device=DEVICE).float()).requires_grad_()
    with kernels_only():
        m = sinkhorn(x, iters=5, backend="triton")
    m.backward(torch.ones_like(m))
    below((m.sum(-1) - 1).abs().max(), 5e-3)
    assert x.grad.isfinite().all()
