"""swiglu's Triton kernels against the definition: several tiles, parts of one product, half precision, errors."""

import pytest
import torch
from support.kernel_cases import normal
from support.triton_cases import HALF, assert_kernel_agrees

from kernels import swiglu


def inputs(*shape: int) -> dict[str, torch.Tensor]:
    return {"gate": 3 * normal(*shape, seed=1), "up": normal(*shape, seed=2)}


@pytest.mark.parametrize("shape", [(2, 5, 7), (9, 530), (6,), (0, 4)], ids=str)
def test_kernels_equal_the_definition(shape):
    assert_kernel_agrees(swiglu, inputs(*shape), torch.float32)


@HALF
def test_half_precision(dtype):
    assert_kernel_agrees(swiglu, inputs(3, 40), dtype)


def test_parts_of_one_product_are_read_where_they_stand():
    joint = normal(2, 3, 20, dtype=torch.float32).requires_grad_()
    found, wanted = (swiglu(*joint.chunk(2, -1), backend=name) for name in ("triton", "reference"))
    torch.testing.assert_close(found, wanted)
    pair = (torch.autograd.grad(y.square().sum(), joint)[0] for y in (found, wanted))
    torch.testing.assert_close(*pair)


@pytest.mark.parametrize(("gate", "up"), [((2, 3), (2, 4)), ((2, 3), (3,))], ids=["width", "axes"])
def test_shapes_that_differ_are_refused(gate, up):
    with pytest.raises(ValueError, match=r"gate and up of the same shape and dtype"):
        swiglu(torch.zeros(gate), torch.zeros(up))
