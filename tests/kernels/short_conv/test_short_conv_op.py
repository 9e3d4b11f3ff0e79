"""short_conv: shifted products against the definition and PyTorch's convolution; states, packing, errors."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import assert_agree, normal, packed
from torch import Tensor

from kernels import short_conv

WIDTH = 5

# batch, time, kernel size, whether a state comes in, options
CALLS = {
    "plain": (2, 13, 4, False, {}),
    "silu": (2, 13, 4, False, {"activation": "silu"}),
    "state": (2, 13, 4, True, {"activation": "silu"}),
    "one token": (2, 1, 3, False, {}),
    "one token, state": (2, 1, 4, True, {}),
    "fewer tokens than taps": (2, 2, 4, True, {}),
    "one tap": (2, 7, 1, False, {"activation": "silu"}),
    "two taps": (1, 7, 2, True, {}),
    "packed": (1, 20, 3, False, {"cu_seqlens": packed(7, 1, 0, 2, 10)}),
    "packed, state": (1, 20, 4, True, {"cu_seqlens": packed(7, 1, 0, 2, 10), "activation": "silu"}),
    "packed, one tap": (1, 5, 1, False, {"cu_seqlens": packed(2, 3)}),
    "packed, one sequence": (1, 9, 4, True, {"cu_seqlens": packed(9)}),
}


def inputs(
    batch: int, time: int, taps: int, with_state: bool, cu_seqlens: Tensor | None = None
) -> list[Tensor]:
    """x, weight and, if asked for, the state of every sequence."""
    sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
    x, weight = normal(batch, time, WIDTH, seed=1), normal(WIDTH, taps, seed=2)
    return [x, weight, *([normal(sequences, WIDTH, taps - 1, seed=3)] if with_state else [])]


def joined(x: Tensor, weight: Tensor, state: Tensor | None = None, **options) -> Tensor:
    """Output and state in one vector, so that a gradient goes through both."""
    return torch.cat([part.flatten() for part in short_conv(x, weight, state=state, **options)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("case", CALLS)
def test_shifted_products_equal_the_definition(case, dtype):
    *shape, options = CALLS[case]
    tensors = [x.to(dtype) for x in inputs(*shape, options.get("cu_seqlens"))]
    call = partial(joined, **options)
    assert_agree(partial(call, backend="torch"), partial(call, backend="reference"), tensors)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("taps", [1, 3, 4])
def test_equals_pytorch_convolution(taps, backend):
    x, weight = inputs(2, 11, taps, with_state=False)
    y, state = short_conv(x, weight, backend=backend)
    padded = F.pad(x.transpose(1, 2), (taps - 1, 0))
    wanted = F.conv1d(padded, weight[:, None], groups=WIDTH).transpose(1, 2)
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-12)
    assert torch.equal(state, padded[..., 11:])


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("pieces", [[5, 6], [1, 2, 8], [1] * 11], ids=str)
def test_a_state_continues_the_sequence(pieces, backend):
    x, weight, state = inputs(2, 11, 4, with_state=True)
    call = partial(short_conv, activation="silu", backend=backend)
    y, after = call(x, weight, state=state)
    outputs = []
    for piece in x.split(pieces, dim=1):
        part, state = call(piece, weight, state=state)
        outputs.append(part)
    torch.testing.assert_close(torch.cat(outputs, dim=1), y, rtol=0, atol=1e-14)
    assert torch.equal(state, after)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cu_seqlens", [None, packed(30, 2, 8)], ids=["batch", "packed"])
def test_half_precision_rounds_once(cu_seqlens, dtype):
    """Products and sums are in fp32: outputs are exact ones, rounded; the state is inputs, bit for bit."""
    x, weight = (part.to(dtype) for part in inputs(1, 40, 4, with_state=False))
    y, state = short_conv(x, weight, activation="silu", cu_seqlens=cu_seqlens)
    exact, _ = short_conv(x.double(), weight.double(), activation="silu", cu_seqlens=cu_seqlens)
    assert y.dtype == state.dtype == dtype
    # But for exact numbers that lie, for fp32, half-way between two; a sum in 16 bit has half of them wrong.
    assert (y == exact.to(dtype)).float().mean() > 0.98
    torch.testing.assert_close(y.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    assert torch.equal(state[-1], x[0, -3:].T)


def test_the_state_keeps_no_tokens_in_memory():
    x, weight = inputs(1, 40, 4, with_state=False)
    for cu_seqlens in (None, packed(30, 10)):
        _, state = short_conv(x, weight, cu_seqlens=cu_seqlens)
        assert state.untyped_storage().nbytes() == state.nbytes
