"""short_conv's Triton kernels against the definition: taps, states, packing, activation, odd widths."""

from functools import partial

import pytest
import torch
from kernel_cases import normal, packed
from triton_cases import DEVICE, HALF, assert_kernel_agrees

from kernels import short_conv

# batch, time, width, taps, whether a state comes in, options; a chunk has 32 tokens, a tile 64 channels.
# The interpreter's time goes by the number of programs: few sequences, few chunks.
CALLS = {
    "plain": (1, 40, 70, 4, False, {}),
    "one token": (2, 1, 16, 4, True, {"activation": "silu"}),
    "fewer tokens than taps": (1, 2, 5, 4, True, {"activation": "silu"}),
    "one tap": (2, 7, 5, 1, False, {"activation": "silu"}),
    "packed": (1, 38, 17, 3, True, {"cu_seqlens": packed(33, 0, 1, 4), "activation": "silu"}),
}


@pytest.mark.parametrize("case", CALLS)
def test_kernels_equal_the_definition(case):
    compare(case, torch.float32)


@HALF
def test_half_precision(dtype):
    compare("packed", dtype)


def compare(case: str, dtype: torch.dtype) -> None:
    batch, time, width, taps, with_state, options = CALLS[case]
    cu_seqlens = options.get("cu_seqlens")
    inputs = {"x": normal(batch, time, width, seed=1), "weight": normal(width, taps, seed=2)}
    if with_state:
        sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
        inputs["state"] = normal(sequences, width, taps - 1, seed=3)
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    assert_kernel_agrees(partial(short_conv, **options), inputs, dtype)
