"""hyper_pre's Triton kernels against the definition: streams, widths, refusals."""

from functools import partial

import pytest
import torch
from support.hyper_cases import normed_inputs, pre_inputs
from support.triton_cases import DEVICE, HALF, assert_kernel_agrees

from kernels import hyper_pre
from kernels.ops import hyper_pre_triton

slow = pytest.mark.slow

# batch, time, n, D; a tile has 4 tokens and 256 channels
SIZES = [
    (2, 3, 4, 300),
    pytest.param((1, 1, 2, 17), marks=slow),
    pytest.param((1, 5, 3, 65), marks=slow),
    pytest.param((1, 2, 8, 33), marks=slow),
]
sizes = pytest.mark.parametrize("size", SIZES, ids=str)


@sizes
def test_kernels_equal_the_definition(size):
    assert_kernel_agrees(hyper_pre, pre_inputs(size), torch.float32)


@HALF
@slow
def test_half_precision(dtype):
    """The coefficients stay fp32, as the residual schemes have them."""
    assert_kernel_agrees(hyper_pre, pre_inputs((2, 3, 4, 33)), dtype, keep=["h_pre"])


@sizes
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
