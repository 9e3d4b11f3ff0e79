"""hyper_post: products and Triton kernels against the definition, identities, precision and errors."""

from functools import partial

import pytest
import torch
from support.hyper_cases import stream_inputs
from support.kernel_cases import assert_agree
from support.triton_cases import HALF, assert_kernel_agrees

from kernels import hyper_post

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
sizes = pytest.mark.parametrize("size", [(2, 1, 2, 3), (2, 5, 4, 8), (2, 7, 3, 65)], ids=str)


@sizes
@dtypes
@pytest.mark.parametrize("common", [False, True], ids=["per token", "one matrix"])
def test_equals_its_definition_with_all_gradients(size, dtype, common):
    args = list(stream_inputs(size, dtype, common=common).values())
    assert_agree(partial(hyper_post, backend="torch"), partial(hyper_post, backend="reference"), args)


def test_an_identity_leaves_the_streams_as_they_are():
    streams, z, _, h = stream_inputs().values()
    eye = torch.eye(4, dtype=torch.float64)
    assert torch.equal(hyper_post(streams, z, eye, torch.zeros_like(h)), streams)
    added = hyper_post(streams, z, eye, torch.ones_like(h))
    torch.testing.assert_close(added, streams + z.unsqueeze(-2))


def test_a_permutation_moves_streams():
    streams, z, _, h = stream_inputs().values()
    swap = torch.eye(4, dtype=torch.float64)[[2, 0, 3, 1]]
    assert torch.equal(hyper_post(streams, z, swap, torch.zeros_like(h)), streams[:, :, [2, 0, 3, 1]])


def test_autocast_does_not_round_the_streams():
    streams, z, h_res, h = stream_inputs(dtype=torch.float32).values()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = hyper_post(streams, z.bfloat16(), h_res, h)
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, hyper_post(streams, z.bfloat16(), h_res, h, backend="reference"))


def test_sixteen_bit_streams_are_added_up_in_fp32():
    args = stream_inputs(dtype=torch.bfloat16)
    x = hyper_post(**args)
    assert x.dtype == torch.bfloat16
    assert torch.equal(x, hyper_post(**{name: y.float() for name, y in args.items()}).bfloat16())


slow = pytest.mark.slow

# batch, time, n, D; a tile has 4 tokens and 256 channels
SIZES = [
    (2, 3, 4, 300),
    pytest.param((1, 1, 2, 17), marks=slow),
    pytest.param((1, 5, 3, 65), marks=slow),
    pytest.param((1, 2, 8, 33), marks=slow),
]
kernel_sizes = pytest.mark.parametrize("size", SIZES, ids=str)
common = pytest.mark.parametrize("common", [False, pytest.param(True, marks=slow)], ids=["own", "common"])


@kernel_sizes
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
