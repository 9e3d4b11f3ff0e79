"""cayley: rotations to rounding, the solve's values and gradients, the identities of its definition."""

from functools import partial

import pytest
import torch
from support.kernel_cases import assert_agree, normal
from support.margins import below

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


@pytest.mark.parametrize(("norm", "terms", "low", "high"), [(0.9, 5, 0.3, 3.0), (0.1, 5, 0.0, 1e-5)])
def test_a_neumann_series_is_no_substitute(norm, terms, low, high):
    """Σ_{k≤K} (−A)^k instead of the inverse: at ‖A‖ = 0.9 and K = 5 QᵀQ is off I by about 1."""
    a = skew(normal(200, 4, 4))
    a = norm * a / torch.linalg.matrix_norm(a, 2)[:, None, None]
    eye = torch.eye(4, dtype=torch.float64)
    series = sum(torch.linalg.matrix_power(-a, k) for k in range(terms + 1))
    q = (eye - a) @ series
    error = torch.linalg.matrix_norm(q.mT @ q - eye, 2).max()
    assert low <= error < high


def test_sixteen_bit_inputs_are_computed_in_fp32():
    raw = normal(20, 4, 4).bfloat16()
    q = cayley(raw)
    assert q.dtype == torch.float32
    torch.testing.assert_close(q, cayley(raw.float()), rtol=0, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        leaf = raw.float().requires_grad_()
        cayley(leaf).square().sum().backward()
    assert cayley(raw.float()).dtype == leaf.grad.dtype == torch.float32


@pytest.mark.parametrize("n", [2, 3, 4])
def test_compiles_in_one_graph_and_runs_on_the_meta_device(n):
    compiled = torch.compile(cayley, fullgraph=True, backend="aot_eager")
    assert_agree(compiled, cayley, [normal(5, n, n)])
    meta = torch.empty(2, 3, n, n, device="meta", requires_grad=True)
    out = cayley(meta)
    out.sum().backward()
    assert out.shape == meta.grad.shape == (2, 3, n, n)


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        ((4,), torch.float32, r"\[\.\.\., n, n\], got torch.float32 \(4,\)"),
        ((2, 3, 4), torch.float32, r"\(2, 3, 4\)"),
        ((2, 0, 0), torch.float32, r"\(2, 0, 0\)"),
        ((4, 4), torch.int64, "int64"),
    ],
)
def test_errors_name_what_is_wrong(shape, dtype, said):
    with pytest.raises(ValueError, match=said):
        cayley(torch.zeros(shape, dtype=dtype))
    with pytest.raises(ValueError, match="unknown backend 'solve'"):
        cayley(torch.zeros(4, 4), backend="solve")
