"""hyper_pre's and hyper_post's Triton kernels against the definitions: streams, common matrices, widths, refusals."""

import pytest
import torch
from support.kernel_cases import normal
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees

from kernels import hyper_post, hyper_pre

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


def inputs(size, common: bool = False) -> dict[str, torch.Tensor]:
    """Arguments of hyper_post by name."""
    batch, time, n, width = size
    return {
        "streams": normal(batch, time, n, width, seed=1),
        "z": normal(batch, time, width, seed=2),
        "h_res": normal(*(() if common else (batch, time)), n, n, seed=3),
        "h_post": normal(batch, time, n, seed=4),
    }


@sizes
def test_reading_equals_the_definition(size):
    compare_pre(size, torch.float32)


@sizes
@common
def test_writing_equals_the_definition(size, common):
    assert_kernel_agrees(hyper_post, inputs(size, common), torch.float32)


@slow
def test_a_common_matrix_is_summed_over_more_tokens_than_one_step():
    """65 tokens: the second step of the sum has two parts, the last nearly empty."""
    assert_kernel_agrees(hyper_post, inputs((1, 65, 2, 3), common=True), torch.float32)


@HALF
@slow
def test_half_precision(dtype):
    """The coefficients stay fp32, as the residual schemes have them."""
    size = (2, 3, 4, 33)
    compare_pre(size, dtype, keep=["h_pre"])
    assert_kernel_agrees(hyper_post, inputs(size), dtype, keep=["h_res", "h_post"])
    assert_kernel_agrees(hyper_post, inputs(size, common=True), dtype)


def compare_pre(size, dtype, **options) -> None:
    every = inputs(size)
    args = {"streams": every["streams"], "h_pre": every["h_post"]}
    assert_kernel_agrees(hyper_pre, args, dtype, **options)


def test_more_streams_are_refused():
    streams, h = torch.zeros(1, 2, 9, 3, device=DEVICE), torch.zeros(1, 2, 9, device=DEVICE)
    for call in (
        lambda: hyper_pre(streams, h, backend="triton"),
        lambda: hyper_post(streams, streams[:, :, 0], streams.new_zeros(9, 9), h, backend="triton"),
    ):
        with pytest.raises(ValueError, match="n of at most 8, got 9"):
            call()


@pytest.mark.gpu
def test_gradients_are_the_same_bits_at_every_run():
    """At a size where every program of the grid runs at its own time."""
    args = {
        name: x.cuda().bfloat16().requires_grad_() for name, x in inputs((1, 16384, 4, 768), True).items()
    }
    dy = torch.randn_like(args["streams"])

    def gradients() -> list[torch.Tensor]:
        return torch.autograd.grad(hyper_post(**args, backend="triton"), list(args.values()), dy)

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))
