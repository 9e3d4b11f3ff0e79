"""Which calls Triton kernels serve and what they say to the others; chunks of packed sequences; fixed-order sums."""

import os
import subprocess
import sys

import pytest
import torch
from support.kernel_cases import normal, packed
from support.triton_cases import DEVICE, LaunchesOnly, assert_kernel_agrees

from kernels import short_conv
from kernels.packing.boundaries import boundaries
from kernels.packing.chunks import chunk_table, first_chunks
from kernels.triton_common import refusal
from kernels.triton_common.device import sum_rows

CALL = """
import torch, kernels
x = torch.zeros(1, 3, 2)
kernels.short_conv(x, torch.zeros(2, 4), backend={backend!r})
"""


def run_without_interpreter(backend: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, "-c", CALL.format(backend=backend)], env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_a_cpu_without_the_interpreter_is_told_how():
    refused = run_without_interpreter("triton")
    assert refused.returncode == 1
    assert "backend 'triton' cannot serve this call: needs CUDA tensors, got cpu" in refused.stderr
    assert "set TRITON_INTERPRET=1 before Python starts" in refused.stderr
    assert "those that can: torch, reference" in refused.stderr
    assert run_without_interpreter("auto").returncode == 0


@pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter's own limits")
def test_the_interpreter_refuses_what_it_would_get_wrong():
    assert "wrongly" in refusal(torch.zeros(2, dtype=torch.bfloat16))
    assert refusal(torch.zeros(2, dtype=torch.float16), None, torch.zeros(2, dtype=torch.int32)) is None


def test_dtypes_widths_and_empty_devices_are_refused():
    assert "got float64" in refusal(torch.zeros(2, dtype=torch.float64, device=DEVICE))
    assert "got meta" in refusal(torch.zeros(2, device="meta"))
    assert "at most 256, got 300" in refusal(torch.zeros(2, device=DEVICE), widths=(16, 300))


def test_auto_leaves_cpus_to_pytorch():
    from kernels.ops.short_conv import OPERATION

    assert OPERATION.choose("auto", torch.zeros(1, 3, 2), torch.zeros(2, 4)).name == "torch"


@pytest.mark.parametrize("lengths", [(5,), (32, 0, 1, 33, 0), (0, 64), (1, 1, 1)], ids=str)
def test_chunks_of_packed_sequences(lengths):
    """Against counting them: every token is in one chunk, chunks end at boundaries, idle rows say so."""
    x, cu = torch.zeros(1, sum(lengths), 2), packed(*lengths)
    table = chunk_table(x, cu, 32)
    wanted = [[i, j] for i, length in enumerate(lengths) for j in range(-(-length // 32))]
    assert table[: len(wanted)].tolist() == wanted
    assert (table[len(wanted) :] == -1).all()
    assert first_chunks(x, cu, 32).tolist() == [
        sum(-(-n // 32) for n in lengths[:i]) for i in range(len(lengths) + 1)
    ]
    assert table.dtype == torch.int32


def test_a_batch_is_packed_sequences_of_one_length():
    x = torch.zeros(3, 40, 2)
    assert boundaries(x, None).tolist() == [0, 40, 80, 120]
    assert chunk_table(x, None, 32).tolist() == [[i, j] for i in range(3) for j in range(2)]
    assert first_chunks(x, None, 32).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("shape", [(1, 3), (33, 70), (5, 2, 3)], ids=str)
def test_sums_of_parts(shape):
    parts = normal(*shape, dtype=torch.float32).to(DEVICE)
    torch.testing.assert_close(sum_rows(parts, torch.float32), parts.sum(0), rtol=1e-5, atol=1e-5)


def test_the_watch_sees_what_pytorch_computes():
    with LaunchesOnly(), pytest.raises(AssertionError, match="computes mul"):
        torch.ones(2) * 2
    with LaunchesOnly():
        fresh = torch.empty(3)
    assert fresh.isnan().all()


FLOATS = {
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(2),
    "max": lambda x: x.max(0),
    "argsort": lambda x: x.argsort(),
    "comparison": lambda x: x > 0,
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, [4]),
    "var_mean": lambda x: torch.var_mean(x),
    "whole numbers divided": lambda _: torch.arange(4) / 2,
}


@pytest.mark.parametrize("case", FLOATS)
def test_the_watch_sees_what_gives_several_tensors_or_whole_numbers(case):
    x = torch.ones(4, 4)
    with LaunchesOnly(), pytest.raises(AssertionError, match="PyTorch computes"):
        FLOATS[case](x)


def test_the_watch_lets_whole_numbers_and_layouts_pass():
    x = torch.ones(4, 4)
    with LaunchesOnly():
        torch.arange(4).cumsum(0).sort()
        x.t().contiguous().to(torch.float16)[1:].clone().copy_(x[1:])


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)], ids=str)
def test_the_comparison_sees_outputs_that_lost_their_gradients(lost):
    def broken(x, weight, backend):
        outputs = short_conv(x, weight, backend=backend)
        return [y.detach() if backend == "triton" and i in lost else y for i, y in enumerate(outputs)]

    inputs = {"x": normal(1, 5, 4), "weight": normal(4, 3)}
    with pytest.raises(AssertionError, match=f"no gradient through o{lost[0]}"):
        assert_kernel_agrees(broken, inputs, torch.float32)
