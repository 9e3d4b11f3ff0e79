"""Kernels compiled for a GPU that is not there: what their machine code holds, and that it is made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import RUN

pytestmark = pytest.mark.long
ROOT = Path(RUN).parent

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def product(a, b, c, M, K: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, N)
    total = tl.zeros((BLOCK, N), tl.float32)
    for start in range(0, K, 64):
        inner = start + tl.arange(0, 64)
        left = tl.load(a + row[:, None] * K + inner[None])
        right = tl.load(b + inner[:, None] * N + column[None])
        total += tl.dot(left, right)
    tl.store(c + row[:, None] * N + column[None], total)

@triton.jit
def running_sums(x, y, T: tl.constexpr):
    place = tl.program_id(0) * T + tl.arange(0, T)
    tl.store(y + place, tl.cumsum(tl.load(x + place)))
"""

COUNTS = """
import json, sys, torch, triton
from pathlib import Path
from experiments.bench.static import kernel_rows, sass
from experiments.bench.static.capture import Capture, capturing
from experiments.bench.static.compiler import Compiler
from experiments.bench.static.gpus import GPUS
from experiments.bench.static.fake_gpu import use_fake_gpu
from experiments.bench.static.tools import _output
from kernels.triton_common.tuning import Tuned
from small import product, running_sums

alike = [triton.Config({}, num_warps=4, num_stages=n) for n in (1, 2, 3)]
tuned = Tuned(product, [triton.Config({"BLOCK": n}, num_warps=4) for n in (64, 128)], ["M"])
a, b = (torch.empty(size, dtype=torch.bfloat16) for size in ((1024, 256), (256, 64)))
found, compiled, binaries = {}, 0, []
for gpu in (GPUS["H200"], GPUS["A100"]):
    launches, compiler = [], Compiler(gpu, Path(sys.argv[1]))
    with use_fake_gpu(gpu), capturing(Capture(compiler, launches.append)):
        assert torch.cuda.get_device_capability() == gpu.capability
        tuned[lambda meta: (1024 // meta["BLOCK"],)](a, b, torch.empty(1024, 64), 1024, K=256, N=64)
        Tuned(running_sums, alike, [])[(8,)](torch.empty(8 * 1024), torch.empty(8 * 1024), T=1024)
    binaries.append(len(compiler._translate._binaries))
    due = dict(compiler._due)
    compiler.finish()
    for key, cubin in due.items():
        alone = sass.parse(_output("nvdisasm", ["-c"], cubin))  # the whole file, as the tool itself labels it
        assert alone == sass.parse(compiler._known[key].machine) and len(alone.instructions) > 50
    assert not torch.cuda.is_available() or torch.version.cuda
    found[gpu.sm] = kernel_rows.rows(launches, gpu)
    compiled += compiler.compiled
print(json.dumps([compiled, binaries, found]))
"""


def counted(folder: Path) -> tuple[tuple[int, list[int]], dict[str, list[dict]]]:
    """How many kernels a process compiled, how many binaries that took on each GPU, and rows by architecture."""
    (folder / "small.py").write_text(KERNELS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", COUNTS, str(folder / "cache")]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled, binaries, rows = json.loads(done.stdout)
    return (compiled, binaries), rows


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    folder = tmp_path_factory.mktemp("static")
    return counted(folder), counted(folder)


def test_a_second_process_compiles_nothing_and_counts_the_same(twice):
    (first, rows), (second, again) = twice
    assert (first[0], second) == (10, (0, [0, 0]))
    assert rows == again


def test_configurations_that_come_to_the_same_are_translated_once(twice):
    """Stages of a kernel without loops: three configurations, a row and a number of stages each, one binary."""
    assert twice[0][0][1] == [3, 3]
    rows = named(twice, "running_sums")
    assert [row["stages"] for row in rows] == [1, 2, 3]
    assert len({row["modelled_milliseconds"] for row in rows}) == 1
    assert [row["chosen"] for row in rows] == [1, 0, 0]


def named(twice, kernel: str, architecture: str = "90") -> list[dict]:
    return [row for row in twice[0][1][architecture] if row["kernel"].endswith(kernel)]


def test_a_product_of_matrices_runs_on_asynchronous_tensor_cores(twice):
    rows = named(twice, "product")
    assert [row["configuration"] for row in rows] == ["BLOCK=64", "BLOCK=128"]
    assert sum(row["chosen"] for row in rows) == 1
    for row in rows:
        assert row["wgmma"] > 0
        assert row["mma_sync"] == row["shuffles"] == row["spills"] == 0
        assert row["flops"] == 2 * 1024 * 256 * 64
        assert row["error"] == ""
        assert row["registers"] > 0
        assert row["unknown_loops"] == 0
    assert [row["programs"] for row in rows] == [16, 8]


def test_an_older_gpu_has_only_the_synchronous_ones(twice):
    for row in named(twice, "product", "80"):
        assert row["wgmma"] == 0
        assert row["mma_sync"] > 0


def test_bytes_of_a_product_are_those_of_its_matrices(twice):
    """Every program asks for all of b, which the caches hold."""
    row = named(twice, "product")[0]
    assert (
        row["bytes_by_argument"]
        == f"a read {1024 * 256 * 2}; b read {256 * 64 * 2}; c written {1024 * 64 * 4}"
    )
    assert row["bytes_read"] == 2 * (1024 * 256 + 256 * 64)
    assert row["bytes_written"] == 4 * 1024 * 64


def test_running_sums_shuffle_and_multiply_nothing(twice):
    row = named(twice, "running_sums")[0]
    # A warp sums its 32 lanes in five rounds at least.
    assert row["shuffles"] >= 5
    assert row["wgmma"] == row["mma_sync"] == row["flops"] == 0
    assert (row["bytes_read"], row["bytes_written"]) == (4 * 8 * 1024, 4 * 8 * 1024)
    assert row["launches"] == row["chosen"] == 1
