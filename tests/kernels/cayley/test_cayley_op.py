"""cayley: rotations to rounding, the identities of its definition, its Triton kernels against it."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, normal
from support.margins import below
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees

from kernels import cayley

every_n = pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
# Some hundred units of rounding: entries of random matrices reach 10, the condition of I + A with them.
ROUNDING = {torch.float64: 2e-14, torch.float32: 1e-5}


def skew(raw: torch.Tensor) -> torch.Tensor:
    return (raw - raw.mT) / 2


@every_n
@dtypes
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_cayley_is_a_rotation(n, dtype, backend):
    """QᵀQ = QQᵀ = I, det Q = +1, all singular values 1."""
    q = cayley(normal(500, n, n, dtype=dtype), backend=backend)
    limit = ROUNDING[dtype]
    for product in (q.mT @ q, q @ q.mT):
        below((product - torch.eye(n, dtype=dtype)).abs().max(), limit)
    below((torch.linalg.det(q) - 1).abs().max(), 2 * limit)
    below((torch.linalg.svdvals(q) - 1).abs().max(), limit)


@every_n
@dtypes
def test_cayley_equals_the_solve_with_all_gradients(n, dtype):
    raw = normal(3, 7, n, n, dtype=dtype)
    assert_agree(partial(cayley, backend="torch"), partial(cayley, backend="reference"), [raw])


@every_n
def test_cayley_of_zero_and_of_symmetric_matrices_is_the_identity(n):
    eye = torch.eye(n, dtype=torch.float64)
    assert torch.equal(cayley(torch.zeros(2, n, n, dtype=torch.float64)), eye.expand(2, n, n))
    symmetric = normal(n, n)
    assert torch.equal(cayley(symmetric + symmetric.mT), eye)


def test_the_closed_form_of_spec():
    """(I+A)⁻¹ = [(1+s)(I−A) + A² − A³] / (1 + s + pf²), s = ½‖A‖²_F, Q = 2(I+A)⁻¹ − I."""
    raw = normal(50, 4, 4)
    a, eye = skew(raw), torch.eye(4, dtype=torch.float64)
    s = 0.5 * a.square().sum((-1, -2))[:, None, None]
    pf = a[:, 0, 1] * a[:, 2, 3] - a[:, 0, 2] * a[:, 1, 3] + a[:, 0, 3] * a[:, 1, 2]
    inverse = ((1 + s) * (eye - a) + a @ a - a @ a @ a) / (1 + s + pf.square()[:, None, None])
    torch.testing.assert_close(inverse @ (eye + a), eye.expand_as(a), rtol=0, atol=1e-12)
    torch.testing.assert_close(cayley(raw), 2 * inverse - eye, rtol=0, atol=1e-12)


@every_n
def test_the_gradient_formula(n):
    """vec dQ = −2·((I+A)⁻ᵀ ⊗ (I+A)⁻¹)·vec dA, columns stacked."""
    raw = normal(n, n)
    direction = skew(normal(n, n, seed=1))
    inverse = torch.linalg.inv(torch.eye(n, dtype=torch.float64) + skew(raw)).contiguous()
    wanted = -2 * torch.kron(inverse.mT.contiguous(), inverse) @ direction.mT.flatten()
    _, got = torch.autograd.functional.jvp(cayley, raw, direction)
    torch.testing.assert_close(got.mT.flatten(), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_gradients_are_the_derivatives_of_both_orders(n):
    raw = normal(2, n, n).requires_grad_()
    assert torch.autograd.gradcheck(cayley, raw)
    assert torch.autograd.gradgradcheck(cayley, raw)


def test_only_the_skew_part_has_a_gradient():
    raw = normal(6, 4, 4).requires_grad_()
    (cayley(raw) * normal(6, 4, 4, seed=2)).sum().backward()
    assert torch.equal(raw.grad, -raw.grad.mT)
    assert raw.grad.abs().max() > 0.1


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("size", [1e2, 1e4, 1e8])
def test_the_closed_form_stays_orthogonal_however_large_its_input(n, size):
    """In fp32, where the solve loses what the condition number costs."""
    q = cayley(size * normal(1000, n, n).float())
    below((q.mT @ q - torch.eye(n)).abs().max(), 4e-6)


def of_norm(norm: float, n: int) -> torch.Tensor:
    """Skew matrices of this spectral norm."""
    a = skew(normal(50, n, n))
    return norm * a / torch.linalg.matrix_norm(a, 2)[:, None, None]


def largest(x: torch.Tensor) -> float:
    return torch.linalg.matrix_norm(x, 2).max().item()


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("norm", [0.1, 0.5, 0.9, 1.0, 1.1])
@pytest.mark.parametrize("terms", [1, 2, 5, 8])
def test_the_errors_of_a_neumann_series(n, norm, terms):
    """Of the inverse, of Q and of QᵀQ against ‖A‖ and K: small where ‖A‖ is, 1 and more from ‖A‖ = 1 on."""
    a, eye = of_norm(norm, n), torch.eye(n, dtype=torch.float64)
    q, exact = cayley(a, neumann_terms=terms), cayley(a)
    last = norm ** (terms + 1)
    rounding = 1e-12 * (1 + last) ** 2
    assert largest(torch.linalg.solve(eye - a, q) - torch.linalg.inv(eye + a)) <= last + rounding
    if norm < 1:
        assert last <= last / (1 - norm)  # the bound of a matrix that is not skew
    assert largest(q - exact) == pytest.approx(last, abs=rounding)
    found = largest(q.mT @ q - eye)
    if terms % 2 == 0:
        assert found == pytest.approx(last**2, abs=rounding)
    else:
        assert last < found <= 2 * last + last**2 + rounding
    if norm >= 1 - 1e-9:
        assert found >= 1 - rounding


@pytest.mark.parametrize("terms", [1, 2, 7])
@dtypes
def test_the_series_equals_its_definition_with_all_gradients(terms, dtype):
    raw = normal(3, 7, 4, 4, dtype=dtype)
    forms = (partial(cayley, backend=backend, neumann_terms=terms) for backend in ("torch", "reference"))
    assert_agree(*forms, [raw / 4])


def test_the_series_is_fp32_under_autocast_and_not_for_triton():
    raw = normal(5, 4, 4, dtype=torch.float32) / 4
    wanted = cayley(raw, neumann_terms=4)
    for backend in ("auto", "reference"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(cayley(raw, neumann_terms=4, backend=backend), wanted)
    with pytest.raises(
        ValueError, match="'triton' cannot serve this call: inverts exactly, without a Neumann"
    ):
        cayley(raw, neumann_terms=4, backend="triton")
    with pytest.raises(ValueError, match="neumann_terms of at least 1, got 0"):
        cayley(raw, neumann_terms=0)


def test_sixteen_bit_inputs_are_computed_in_fp32():
    raw = normal(20, 4, 4).bfloat16()
    q = cayley(raw)
    assert q.dtype == torch.float32
    torch.testing.assert_close(q, cayley(raw.float()), rtol=0, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        leaf = raw.float().requires_grad_()
        cayley(leaf).square().sum().backward()
    assert cayley(raw.float()).dtype == leaf.grad.dtype == torch.float32


slow = pytest.mark.slow
EVERY_N = [4, *(pytest.param(n, marks=slow) for n in (1, 2, 3, 5, 8))]


def as_input(n: int) -> dict[str, torch.Tensor]:
    return {"raw": normal(2, 3, n, n)}


@pytest.mark.parametrize("n", EVERY_N)
def test_rotations_equal_the_solve(n):
    assert_kernel_agrees(cayley, as_input(n), torch.float32)


@slow
def test_more_matrices_than_a_program_has():
    assert_kernel_agrees(cayley, {"raw": normal(130, 4, 4)}, torch.float32)


@HALF
@slow
def test_kernels_in_half_precision(dtype):
    assert_kernel_agrees(cayley, as_input(4), dtype)
    assert cayley(as_input(4)["raw"].to(DEVICE, dtype), backend="triton").dtype == torch.float32


@slow
@pytest.mark.parametrize("size", [1e2, 1e8])
def test_kernels_stay_orthogonal_however_large_their_input(size):
    q = cayley(size * normal(50, 4, 4, device=DEVICE).float(), backend="triton")
    below((q.mT @ q - torch.eye(4, device=DEVICE)).abs().max(), 4e-6)


@slow
def test_elimination_chooses_its_pivots():
    """The first entry is 1 among thousands: taken as it comes, it would cost all digits."""
    for n in (2, 3, 8):
        q = cayley(1e3 * normal(20, n, n, device=DEVICE).float(), backend="triton")
        below((q.mT @ q - torch.eye(n, device=DEVICE)).abs().max(), 0.02)
