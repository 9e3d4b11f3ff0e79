"""hyper_pre: products and Triton kernels against the definition, an identity, precision, cost and errors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.hyper_cases import normed_inputs, pre_inputs
from support.kernel_cases import assert_agree
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees

from kernels import hyper_pre
from kernels.ops import hyper_pre_triton

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
sizes = pytest.mark.parametrize("size", [(2, 1, 2, 3), (2, 5, 4, 8), (2, 7, 3, 65)], ids=str)


@sizes
@dtypes
def test_equals_its_definition_with_all_gradients(size, dtype):
    args = list(pre_inputs(size, dtype).values())
    assert_agree(partial(hyper_pre, backend="torch"), partial(hyper_pre, backend="reference"), args)


@sizes
@dtypes
def test_with_a_gain_equals_its_definition_with_all_gradients(size, dtype):
    def call(streams, h, gain, backend):
        return hyper_pre(streams, h, gain=gain, backend=backend)

    args = list(normed_inputs(size, dtype).values())
    assert_agree(partial(call, backend="torch"), partial(call, backend="reference"), args)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_with_a_gain_it_is_the_norm_of_the_sum(backend):
    streams, h, gain = normed_inputs().values()
    wanted = F.rms_norm(hyper_pre(streams, h), gain.shape, gain, 0.3)
    got = hyper_pre(streams, h, gain=gain, eps=0.3, backend=backend)
    torch.testing.assert_close(got, wanted)
    assert not torch.allclose(got, hyper_pre(streams, h, gain=gain, backend=backend))


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("inputs", [pre_inputs, normed_inputs])
def test_streams_handed_on_are_the_streams(inputs, backend):
    args = {name: x.requires_grad_() for name, x in inputs().items()}
    y, streams = hyper_pre(**args, hand_on=True, backend=backend)
    assert torch.equal(streams, args["streams"])
    assert torch.equal(y, hyper_pre(**args, backend=backend))
    (got,) = torch.autograd.grad((y * y).sum() + (streams**3).sum(), args["streams"])
    (alone,) = torch.autograd.grad(hyper_pre(**args, backend=backend).square().sum(), args["streams"])
    torch.testing.assert_close(got, alone + 3 * args["streams"] ** 2)


def test_even_coefficients_give_the_mean():
    streams, h = pre_inputs().values()
    torch.testing.assert_close(hyper_pre(streams, torch.full_like(h, 0.25)), streams.mean(-2))


def test_autocast_does_not_round_the_streams():
    args = pre_inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = hyper_pre(**args)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, hyper_pre(**args, backend="reference"))


def test_sixteen_bit_streams_give_sixteen_bit_sums():
    assert hyper_pre(**pre_inputs(dtype=torch.bfloat16)).dtype == torch.bfloat16


slow = pytest.mark.slow

# batch, time, n, D; a tile has 4 tokens and 256 channels
SIZES = [
    (2, 3, 4, 300),
    pytest.param((1, 1, 2, 17), marks=slow),
    pytest.param((1, 5, 3, 65), marks=slow),
    pytest.param((1, 2, 8, 33), marks=slow),
]
kernel_sizes = pytest.mark.parametrize("size", SIZES, ids=str)


@kernel_sizes
def test_kernels_equal_the_definition(size):
    assert_kernel_agrees(hyper_pre, pre_inputs(size), torch.float32)


@HALF
@slow
def test_half_precision(dtype):
    """The coefficients stay fp32, as the residual schemes have them."""
    assert_kernel_agrees(hyper_pre, pre_inputs((2, 3, 4, 33)), dtype, keep=["h_pre"])


@kernel_sizes
def test_the_norm_in_the_kernel_equals_the_definition(size):
    assert_kernel_agrees(hyper_pre, normed_inputs(size), torch.float32)


@HALF
@slow
def test_the_norm_in_half_precision(dtype):
    assert_kernel_agrees(hyper_pre, normed_inputs((2, 3, 4, 33)), dtype, keep=["h_pre", "gain"])


@pytest.mark.parametrize("inputs", [pre_inputs, normed_inputs])
def test_streams_handed_on_bring_their_gradient(inputs):
    """The comparison gives every output a gradient; no operator but the kernel may add them."""
    assert_kernel_agrees(partial(hyper_pre, hand_on=True), inputs((1, 5, 3, 65)), torch.float32)


def test_the_norm_takes_the_eps_that_is_asked_for():
    assert_kernel_agrees(partial(hyper_pre, eps=0.5), normed_inputs((1, 3, 2, 17)), torch.float32)


def test_gradients_of_the_gain_are_summed_over_spans(monkeypatch):
    monkeypatch.setattr(hyper_pre_triton, "SPAN", 4)
    assert_kernel_agrees(hyper_pre, normed_inputs((1, 11, 2, 20)), torch.float32)


def test_tokens_too_wide_to_hold_are_refused():
    streams, h, gain = (torch.zeros(size, device=DEVICE) for size in ((1, 1, 2, 16385), (1, 1, 2), (16385,)))
    with pytest.raises(ValueError, match="at most 32768 numbers n·D, got 32770"):
        hyper_pre(streams, h, gain=gain, backend="triton")
    assert hyper_pre(streams, h, backend="triton").shape == (1, 1, 16385), "a sum alone is made part by part"
