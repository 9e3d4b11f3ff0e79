"""rms_linear: the scaled product against the normalised input, its gradients, precision and errors."""

from functools import partial

import pytest
import torch
from kernel_cases import assert_agree, normal

from kernels import rms_linear


def inputs(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [3 * normal(2, 5, 24, dtype=dtype, seed=1), normal(7, 24, dtype=dtype, seed=2)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("eps", [1e-6, 2.0])
def test_it_equals_its_definition_with_all_gradients(eps, dtype):
    pair = [partial(rms_linear, eps=eps, backend=backend) for backend in ("torch", "reference")]
    assert_agree(*pair, inputs(dtype))


def test_gradients_are_the_derivatives_at_zero_too():
    x, weight = (y.requires_grad_() for y in inputs())
    assert torch.autograd.gradcheck(rms_linear, (x, weight))
    (grad,) = torch.autograd.grad(rms_linear(torch.zeros_like(x).requires_grad_(), weight).sum(), weight)
    assert not grad.any()


def test_half_precision_and_autocast_are_computed_in_fp32():
    x, weight = (y.bfloat16() for y in inputs())
    wanted = rms_linear(x.float(), weight.float())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rms_linear(x, weight), wanted)


def test_compiles_in_one_graph():
    assert_agree(torch.compile(rms_linear, fullgraph=True, backend="aot_eager"), rms_linear, inputs())


def test_errors_name_what_is_wrong():
    x, weight = inputs()
    with pytest.raises(ValueError, match=r"x \[..., K\] and weight \[N, K\], got \(2, 5, 23\), \(7, 24\)"):
        rms_linear(x[..., 1:], weight)
