"""A GPU that is not there: launches compiled for it, what is counted of them, and suite=compile."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
from support.program import RUN
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from experiments.bench import compiled
from experiments.bench.cases import CASES
from experiments.bench.compiled import GPUS, Launch, compiling_for, kernel_rows, spread_blocks, use_fake_gpu
from experiments.bench.suites import compile as suite
from experiments.configuration.schema import Config
from kernels.ops.nsa_attention import triton_ops as nsa_on_host
from zoo.errors import UserError


def test_architectures_are_those_that_the_compiler_knows_these_gpus_by():
    """Hopper is sm_90, Ampere's A100 sm_80."""
    assert {name: gpu.sm for name, gpu in GPUS.items()} == {"H200": 90, "H100": 90, "A100": 80}


@pytest.mark.parametrize("name", list(GPUS))
def test_a_fake_gpu_answers_with_its_sizes_as_long_as_it_is_in_use(name: str):
    gpu, before = GPUS[name], torch.cuda.device_count()
    with use_fake_gpu(gpu):
        cuda, active = torch.cuda, driver.active
        assert (cuda.is_available(), cuda.device_count(), cuda.current_device()) == (True, 1, 0)
        assert (cuda.get_device_name(0), cuda.get_device_capability(0)) == (gpu.name, gpu.capability)
        told = cuda.get_device_properties(0)
        assert (told.name, (told.major, told.minor)) == (gpu.name, gpu.capability)
        assert told.multi_processor_count == gpu.multiprocessors
        assert told.shared_memory_per_block_optin == gpu.program_shared
        cuda.synchronize()
        with cuda.device(0):
            pass
        assert active.get_current_target() == triton.backends.compiler.GPUTarget("cuda", gpu.sm, 32)
        assert (active.get_current_device(), active.get_current_stream(0), active.is_active()) == (0, 0, True)
        assert active.get_active_torch_device() == torch.device("cpu")
        assert active.get_device_interface() is cuda
        assert active.utils.get_device_properties(0) == {
            "max_shared_mem": gpu.program_shared,
            "multiprocessor_count": gpu.multiprocessors,
            "max_num_regs": gpu.registers,
            "warpSize": 32,
        }
    assert torch.cuda.device_count() == before


def test_blocks_are_spread_over_those_up_to_a_querys_own():
    blocks = spread_blocks(64, 4, 3)
    assert blocks[5].tolist() == [0, 4, -1]
    assert blocks[11].tolist() == [0, 4, 8]
    assert blocks[63].tolist() == [0, 28, 60]
    assert blocks.dtype == torch.int32
    assert spread_blocks(8, 2, 1).unique().tolist() == [0], "a single block is the first"


def test_the_spread_blocks_stand_in_for_the_choice_of_a_kernel(monkeypatch):
    monkeypatch.setattr(nsa_on_host, "block_topk", lambda *_: torch.full((1, 8, 2, 3), 9, dtype=torch.int32))
    with compiled.even_selection():
        chosen = nsa_on_host.block_topk(*[None] * 5, SimpleNamespace(select_size=2), 1.0, None)
    assert chosen[0, 7].tolist() == [[0, 2, 6], [0, 2, 6]]


def pretended(name: str = "_forward") -> SimpleNamespace:
    """A pretended kernel of a tensor and a constant with a default."""
    params = [
        SimpleNamespace(name="x", is_constexpr=False, default=None),
        SimpleNamespace(name="SIZE", is_constexpr=True, default=64),
        SimpleNamespace(name="NONE", is_constexpr=True, default=None),
    ]
    function = SimpleNamespace(__module__="kernels.ops.mesa.triton_ops", __name__=name)
    return SimpleNamespace(fn=function, params=params, arg_names=["x", "SIZE", "NONE"])


def made(code: str, shared: int = 100) -> SimpleNamespace:
    """What the compiler gives."""
    facts = SimpleNamespace(num_warps=2, num_stages=5, shared=shared)
    return SimpleNamespace(metadata=facts, hash=code, asm={"cubin": code.encode()})


def test_a_launch_is_compiled_and_not_run_and_one_that_does_not_compile_is_its_error(monkeypatch):
    asked = []

    def compile_(kernel, *args, grid, warmup, **options):
        asked.append((kernel.fn.__name__, grid, warmup, options))
        if kernel.fn.__name__ == "_broken":
            raise ValueError("no\n such  type")
        return made("code")

    monkeypatch.setattr(JITFunction, "run", compile_)
    x = torch.zeros(4, 8)
    launches: list[Launch] = []
    with compiling_for("H200", launches):
        JITFunction.run(pretended(), x, grid=(3,), warmup=False, num_warps=2)
        JITFunction.run(pretended("_broken"), x[:1].expand(100, 8), SIZE=16, grid=(3,), num_warps=8)
    assert asked == [("_forward", (3,), True, {"num_warps": 2}), ("_broken", (3,), True, asked[1][3])]
    assert (launches[0].kernel, launches[0].constants, launches[0].error) == (
        "mesa._forward",
        {"SIZE": 64},
        "",
    )
    assert (launches[0].warps, launches[0].stages, launches[0].argument_bytes) == (2, 5, 4 * 32)
    assert (launches[1].constants, launches[1].warps, launches[1].compiled) == ({"SIZE": 16}, 8, None)
    assert launches[1].error == "ValueError: no such type"
    assert launches[1].argument_bytes == 4 * 32, "of an expanded tensor what is stored"
    with pytest.raises(ValueError, match="no"), compiling_for("H200"):
        JITFunction.run(pretended("_broken"), x, grid=(3,))
    assert JITFunction.run is compile_


def test_a_tuned_kernel_is_launched_in_every_configuration(monkeypatch):
    from kernels.triton_common.tuning import Tuned

    monkeypatch.setattr(Tuned, "all", [])
    seen = []

    class Kernel:
        fn = SimpleNamespace(__module__="kernels.ops.mesa.triton_ops", __name__="_go", __code__=None)

        def __getitem__(self, grid):
            return lambda *args, **options: seen.append((grid, args, options))

    configurations = [triton.Config({"BM": n}, num_warps=n // 16, num_stages=2) for n in (16, 32)]
    tuned = Tuned(Kernel(), configurations, [])
    with compiling_for("H200"):
        tuned[(7,)]("x", K=64)
    options = [{"K": 64, "num_ctas": 1, **one.all_kwargs()} for one in configurations]
    assert [(grid, args) for grid, args, _ in seen] == [((7,), ("x",))] * 2
    assert [{"num_ctas": 1, **given} for _, _, given in seen] == options


def test_rows_add_up_launches_of_the_same_code(monkeypatch):
    monkeypatch.setattr(compiled, "resource_usage", lambda cubin: (len(cubin), 8))

    def launch(code: str, size: int, shared: int = 100) -> Launch:
        return Launch("mesa._forward", {"K": 64, "V": 8}, size, 2, 5, made(code, shared))

    failed = Launch("mesa._solve", {}, 10, 4, 3, None, "ValueError: no such type")
    launches = [
        launch("a", 100),
        launch("bb", 30),
        launch("a", 200),
        launch("ccc", 1, 232_449),
        failed,
        failed,
    ]
    rows = kernel_rows(launches, GPUS["H200"])
    assert [(row["launches"], row["argument_bytes"]) for row in rows] == [(2, 300), (1, 30), (1, 1), (2, 20)]
    assert [row.get("registers") for row in rows] == [1, 2, 3, None]
    assert (rows[0]["constants"], rows[0]["warps"], rows[0]["stages"]) == ("K=64 V=8", 2, 5)
    assert (rows[0]["stack_bytes"], rows[0]["shared_bytes"], rows[0]["error"]) == (8, 100, "")
    assert rows[2]["error"] == "needs 232449 bytes of shared memory, there are 232448"
    assert rows[3]["error"] == "ValueError: no such type"


def test_without_a_compiler_or_its_tools_it_says_what_to_do(monkeypatch):
    with pytest.raises(UserError, match=r"unknown bench.target 'H20'.*H200"):
        compiled.check_compiler("bench.target", "H20")
    monkeypatch.setattr(compiled, "interpreted", lambda: True)
    with pytest.raises(UserError, match="unset TRITON_INTERPRET"):
        compiled.check_compiler("gpu.target", "H200")
    monkeypatch.setattr(compiled, "interpreted", lambda: False)

    def missing(path: str):
        raise RuntimeError("Cannot find it")

    compiled._tool.cache_clear()
    monkeypatch.setattr("triton.knobs.env_nvidia_tool.transform", lambda *_: missing(""))
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/nowhere")
    with pytest.raises(UserError, match=r"needs NVIDIA's ptxas.*TRITON_PTXAS_PATH"):
        compiled.check_compiler("gpu.target", "H200")


KERNELS = """
import torch, triton
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
def changes_its_type(x, n):
    value = n
    if n > 3:
        value = n.to(tl.int64)
    tl.store(x, value)
"""

COMPILES = """
import json, sys, torch, triton
from experiments.bench.compiled import GPUS, compiling_for, kernel_rows
from kernels.triton_common.tuning import Tuned
from small import changes_its_type, product

tuned = Tuned(product, [triton.Config({"BLOCK": n}, num_warps=4) for n in (64, 128)], ["M"])
a, b = (torch.empty(size, dtype=torch.bfloat16) for size in ((1024, 256), (256, 64)))
launches = []
with compiling_for(sys.argv[1], launches):
    for _ in range(2):
        tuned[lambda meta: (1024 // meta["BLOCK"],)](a, b, torch.empty(1024, 64), 1024, K=256, N=64)
    changes_its_type[(1,)](torch.zeros(1), 7)
code = [launch.compiled.asm["ptx"] for launch in launches if launch.compiled]
print(json.dumps([kernel_rows(launches, GPUS[sys.argv[1]]), ["wgmma" in text for text in code]]))
"""


@pytest.mark.long
@pytest.mark.parametrize(("gpu", "asynchronous"), [("H200", True), ("A100", False)])
def test_kernels_are_compiled_for_the_gpu_that_is_named(tmp_path: Path, gpu: str, asynchronous: bool):
    """With its instructions: Hopper's products are asynchronous. What the interpreter does not see is an error:
    Triton's variables keep their types in both branches."""
    (tmp_path / "small.py").write_text(KERNELS)
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(RUN).parent), str(tmp_path)])
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    command = [sys.executable, "-c", COMPILES, gpu]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows, with_wgmma = json.loads(done.stdout)
    *products, failed = rows
    assert with_wgmma == [asynchronous] * 4
    assert [row["constants"] for row in products] == ["K=256 N=64 BLOCK=64", "K=256 N=64 BLOCK=128"]
    for row in products:
        assert row["launches"] == 2
        assert row["argument_bytes"] == 2 * (2 * 1024 * 256 + 2 * 256 * 64 + 4 * 1024 * 64)
        assert row["registers"] > 0
        assert row["shared_bytes"] > 0
        assert (row["stack_bytes"], row["error"]) == (0, "")
    assert failed["kernel"] == "small.changes_its_type"
    assert "value" in failed["error"]
    assert "int64" in failed["error"]


@pytest.mark.long
def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path):
    words = [
        "job=bench",
        "suite=compile",
        "bench.cases=[short_conv]",
        "bench.out=tables",
        "trainer.progress=false",
    ]
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(RUN).parent)
    command = [sys.executable, str(RUN), *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "tables/compile.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["kernel"].rpartition(".")[2] for row in rows} >= {"_forward", "_backward", "_sum_rows"}
    for row in rows:
        assert (row["target"], row["error"]) == ("H200", "")
        assert all(int(row[name]) > 0 for name in ("registers", "launches", "argument_bytes"))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (None, [CASES["path_attention"].compiled, 256, 1, 256]),
        ([64, 128], [64, 128, 64, 128, 1, 64, 128]),
    ],
)
def test_every_case_is_compiled_at_its_own_length_or_those_asked_for(monkeypatch, lengths, expected):
    """Of a step one token; of others as many as launch every kernel."""
    seen: list[int] = []
    monkeypatch.setattr(suite, "check_compiler", lambda key, target: None)
    monkeypatch.setattr(suite, "_launches", lambda case, length, target: seen.append(length) or [target])
    monkeypatch.setattr(suite, "kernel_rows", lambda launches, gpu: [{"kernel": "k"}, {"kernel": gpu.name}])
    monkeypatch.setattr(suite, "_line", lambda row: "")
    config = Config()
    config.bench.cases, config.bench.lengths, config.trainer.progress = (
        ["path_attention", "short_conv"],
        lengths,
        False,
    )
    config.bench.target = "A100"
    rows = suite.run(config)
    assert seen == expected
    assert [row["tokens"] for row in rows] == [length for length in expected for _ in range(2)]
    first = {"model": "path_attention", "target": "A100", "tokens": expected[0], "kernel": "k"}
    assert rows[0] == first
    assert rows[1]["kernel"] == "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("name", "way"), [("short_conv", "forward_backward"), ("short_conv, a step", "forward")]
)
def test_a_case_is_launched_forward_and_backward_if_it_has_a_backward(monkeypatch, name: str, way: str):
    ways: list[tuple[str, list]] = []
    for each in ("forward", "forward_backward"):
        monkeypatch.setattr(suite, each, lambda form, leaves, each=each: ways.append((each, form())))
    monkeypatch.setattr(suite, "on_triton", lambda call: call.operation)
    case = CASES[name]
    assert suite._launches(case, case.length or 16, "H200") == []
    assert ways == [(way, ["short_conv"])]


def test_lines_of_kernels():
    row = {"kernel": "mesa._forward", "constants": "K=64 V=64", "warps": 4, "registers": 99, "stack_bytes": 8}
    row |= {"shared_bytes": 4096, "launches": 1, "error": ""}
    start = "mesa._forward [K=64 V=64; 4 warps]"
    assert suite._line(row) == f"{start}: 99 registers, 8 B stack, 4096 B shared, 1 launch"
    assert suite._line({**row, "launches": 2}).endswith("4096 B shared, 2 launches")
    assert suite._line({**row, "error": "no room"}) == f"FAILED {start}: no room"


def test_the_interpreter_compiles_nothing_and_says_so():
    with pytest.raises(UserError, match="unset TRITON_INTERPRET"):
        suite.run(Config())
