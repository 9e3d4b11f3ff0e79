"""hyper_post's Triton kernels against the definition: streams, common matrices, widths, refusals."""

import pytest
import torch
from support.hyper_cases import stream_inputs
from support.triton_cases import HALF, assert_kernel_agrees

from kernels import hyper_post

slow = pytest.mark.slow

# batch, time, n, D; a tile has 4 tokens and 256 channels
SIZES = [
    (2, 3, 4, 300),
    pytest.param((1, 1, 2, 17), marks=slow),
    pytest.param((1, 5, 3, 65), marks=slow),
    pytest.param((1, 2, 8, 33), marks=slow),
]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)
common = pytest.mark.parametrize("common", [False, pytest.param(True, marks=slow)], ids=["own", "common"])


@sizes
@common
def test_kernels_equal_the_definition(size, common):
    assert_kernel_agrees(hyper_post, stream_inputs(size, common=common), torch.float32)


@slow
def test_a_common_matrix_is_summed_over_more_tokens_than_one_step():
    """65 tokens: the second step of the sum has two parts, the last nearly empty."""
    assert_kernel_agrees(hyper_post, stream_inputs((1, 65, 2, 3), common=True), torch.float32)


@HALF
@slow
def test_half_precision(dtype):
    """The coefficients stay fp32, as the residual schemes have them."""
    size = (2, 3, 4, 33)
    assert_kernel_agrees(hyper_post, stream_inputs(size), dtype, keep=["h_res", "h_post"])
    assert_kernel_agrees(hyper_post, stream_inputs(size, common=True), dtype)


@pytest.mark.gpu
def test_gradients_are_the_same_bits_at_every_run():
    """At a size where every program of the grid runs at its own time."""
    args = {
        name: x.cuda().bfloat16().requires_grad_()
        for name, x in stream_inputs((1, 16384, 4, 768), common=True).items()
    }
    dy = torch.randn_like(args["streams"])

    def gradients() -> list[torch.Tensor]:
        return torch.autograd.grad(hyper_post(**args, backend="triton"), list(args.values()), dy)

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))
