"""Which calls Triton kernels serve, and what is said to the others."""

import os
import subprocess
import sys

import pytest
import torch
from support.kernel_cases import normal
from support.triton_cases import DEVICE

from kernels.triton_common import refusal, sum_rows

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


@pytest.mark.long
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
    assert refusal(torch.zeros(2, device=DEVICE), widths=(16, 256)) is None


def test_auto_leaves_cpus_to_pytorch():
    from kernels.ops.short_conv import OPERATION

    assert OPERATION.choose("auto", torch.zeros(1, 3, 2), torch.zeros(2, 4)).name == "torch"


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (2, 2, 1100), (33, 70), (5, 2, 3)], ids=str)
def test_sums_of_parts(shape):
    parts = normal(*shape, dtype=torch.float32).to(DEVICE)
    torch.testing.assert_close(sum_rows(parts, torch.float32), parts.sum(0), rtol=1e-5, atol=1e-5)
