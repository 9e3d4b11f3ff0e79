"""Bytes of the kernels that read every input once: against the sizes of what a call takes and gives."""

import importlib

import pytest
import torch
from support.hyper_cases import pre_inputs, stream_inputs
from support.kernel_cases import normal, packed

import kernels
from kernels.triton_common.tiles import nbytes

TOKENS, N, WIDTH, ROWS = 10, 4, 8, 24  # of `stream_inputs`; ROWS = 2·N + N², coefficients of a token


def coefficients() -> dict[str, torch.Tensor]:
    sizes = {"phi": (ROWS, N * WIDTH), "scale": (3,), "bias": (ROWS,)}
    return {"streams": stream_inputs()["streams"]} | {name: normal(*shape) for name, shape in sizes.items()}


def convolution(batch: int, sequences: int) -> dict[str, torch.Tensor]:
    x = normal(batch, 9, 6)
    return {"x": x, "weight": normal(6, 4, seed=1), "state": normal(sequences, 6, 3, seed=2)}


# tensors; other arguments; the bytes in fp32 that forward keeps beside its results; what backward reads again
INPUTS, RESULTS = "inputs", "results"
CASES = {
    "hyper_pre": (pre_inputs(), {}, 0, [INPUTS]),
    "hyper_post": (stream_inputs(), {}, 0, [INPUTS]),
    "hyper_post, one matrix": (stream_inputs(common=True), {}, 0, [INPUTS]),
    "hyper_coefficients": (coefficients(), {}, 4 * TOKENS * (ROWS + 1), [INPUTS]),
    "short_conv": (convolution(2, 2), {}, 0, [INPUTS]),
    "short_conv, packed": (convolution(1, 3), {"cu_seqlens": packed(4, 0, 5)}, 0, [INPUTS]),
    "sinkhorn": ({"raw": normal(2, 5, 4, 4)}, {}, 0, [INPUTS, RESULTS]),
    "cayley": ({"raw": normal(2, 5, 4, 4)}, {}, 0, [RESULTS]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_of_what_is_read_and_written(case, dtype):
    """Forward reads inputs and writes results; backward reads their gradients, and writes one of every input."""
    tensors, options, kept, again = CASES[case]
    name = case.split(",")[0]
    given = {name: x.to(dtype) for name, x in tensors.items()}
    results = getattr(kernels, name)(**given, **options)
    results = [results] if isinstance(results, torch.Tensor) else results
    size = {INPUTS: nbytes(*given.values()), RESULTS: nbytes(*results)}
    work = importlib.import_module(f"kernels.ops.{name}").work
    forward, backward = work(**given, **options)
    assert (forward.kernel, forward.way, backward.way) == (name, "forward", "backward")
    assert forward.bytes == size[INPUTS] + size[RESULTS] + kept
    assert backward.bytes == sum(size[x] for x in again) + kept + size[RESULTS] + size[INPUTS]
