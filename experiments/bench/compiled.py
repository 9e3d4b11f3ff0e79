"""Compiling for a GPU that is not there: every launch of a host call becomes machine code and is not run.

A stand-in for the device answers the questions of Triton and PyTorch with a GPU's sizes, so that the real host code
runs on tensors of a CPU. Outputs of kernels are uninitialised memory; where the host reads one, plausible numbers are
put in. Machine code goes into Triton's cache. Its keys are those that the GPU's own machine makes with the same Triton,
of the same Python and system, so that the cache folder can be carried there, to the same path (TRITON_CACHE_DIR).

Libraries ask for the device at import and keep the answer, and kernels keep the first target that they are compiled
for: use one GPU a process.
"""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from experiments.bench.cases import Call
from experiments.bench.memory_traffic import stored_bytes
from kernels.dispatch import never
from kernels.ops import attention as attention_on_host
from kernels.ops.nsa_attention import triton_ops as nsa_on_host
from kernels.triton_common import interpreted
from kernels.triton_common.tuning import Tuned, name_of
from zoo.errors import UserError, unknown

# The GPU.


@dataclass(frozen=True)
class Gpu:
    """A GPU's sizes.

    name              as its driver gives it
    capability        major and minor number
    multiprocessors   how many it has
    program_shared    bytes of shared memory that one program can have
    registers         of a multiprocessor, 32 bits each
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    program_shared: int
    registers: int = 65_536

    @property
    def sm(self) -> int:
        """The compiler's number of the architecture, 90 for 9.0."""
        return 10 * self.capability[0] + self.capability[1]


# CUDA C++ programming guide, table "technical specifications per compute capability"; data sheets of the SXM forms.
GPUS = {
    "H200": Gpu("NVIDIA H200", (9, 0), 132, 232_448),
    "H100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 232_448),
    "A100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 166_912),
}


class _Driver:
    """A driver for Triton that answers questions about the device; nothing is loaded or launched through it."""

    def __init__(self, gpu: Gpu) -> None:
        properties = {
            "max_shared_mem": gpu.program_shared,
            "multiprocessor_count": gpu.multiprocessors,
            "max_num_regs": gpu.registers,
            "warpSize": 32,
        }
        self.target = GPUTarget("cuda", gpu.sm, 32)
        self.utils = SimpleNamespace(get_device_properties=lambda _device: properties)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cuda

    def is_active(self) -> bool:
        return True


@contextlib.contextmanager
def use_fake_gpu(gpu: Gpu) -> Iterator[None]:
    """Return a context manager inside which this GPU seems to be there, and tensors of a CPU to be on it."""
    properties = SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        multi_processor_count=gpu.multiprocessors,
        shared_memory_per_block_optin=gpu.program_shared,
    )
    answers = {
        "is_available": True,
        "synchronize": None,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": gpu.name,
        "get_device_capability": gpu.capability,
        "get_device_properties": properties,
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, answer=answer, **__: answer))
        stack.enter_context(mock.patch.object(torch.cuda, "device", contextlib.nullcontext))
        stack.enter_context(mock.patch.object(driver, "_active", _Driver(gpu)))
        yield


# The host call.


def on_triton(call: Call) -> Any:
    """Run a call's Triton form on tensors of a CPU, which it would refuse otherwise, and return its outputs."""
    with call.registry.override("triton", refuses=never):
        return call.run("triton")


@contextlib.contextmanager
def equal_segments() -> Iterator[None]:
    """Return a context manager inside which PyTorch's attention over segments takes them to be of equal length.

    Their boundaries cu_seqlens [N + 1] are computed by a kernel that does not run here: the N segments are cut evenly
    from the tokens instead.
    """
    eager = attention_on_host.segment_attention_eager

    def attend(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options) -> Tensor:
        count = len(cu_seqlens) - 1
        return eager(q, k, v, torch.arange(count + 1) * len(q) // count, **options)

    with mock.patch.object(attention_on_host, "segment_attention_eager", attend):
        yield


@contextlib.contextmanager
def even_selection() -> Iterator[None]:
    """Return a context manager inside which NSA's queries choose blocks of keys as `spread_blocks` does.

    Its backward pass sorts the choice, which the kernel that makes it, not run here, leaves unwritten.
    """
    block_topk = nsa_on_host.block_topk

    def choose(
        q: Tensor, k: Tensor, lse: Tensor, branch: Any, first_key: Tensor, sizes: Any, *rest: Any
    ) -> Tensor:
        chosen = block_topk(q, k, lse, branch, first_key, sizes, *rest)
        return chosen.copy_(spread_blocks(chosen.shape[1], sizes.select_size, chosen.shape[-1])[:, None])

    with mock.patch.object(nsa_on_host, "block_topk", choose):
        yield


def spread_blocks(queries: int, size: int, number: int) -> Tensor:
    """Return the first keys of the blocks that each query chooses, int32 [queries, number].

    Of the blocks of `size` keys up to a query's own, `number` evenly spaced ones, the first and its own among them; all
    of them, and −1 for the rest, where there are no more than `number`.
    """
    own, place = torch.arange(queries)[:, None] // size, torch.arange(number)
    apart = place * own // max(number - 1, 1)
    few = torch.where(place <= own, place, -1)
    block = torch.where(own < number, few, apart)
    return torch.where(block < 0, -1, block * size).int()


# Its launches.


@dataclass(frozen=True)
class Launch:
    """A launch that was compiled.

    constants: the arguments that the kernel declares as constants (`tl.constexpr`), but for those that are None
    argument_bytes: of the tensors that it takes, each once; compiled: by Triton, None where that failed, with its error
    """

    kernel: str
    constants: dict[str, Any]
    argument_bytes: int
    warps: int
    stages: int
    compiled: Any = None
    error: str = ""


@contextlib.contextmanager
def compiling_for(target: str, launches: list[Launch] | None = None) -> Iterator[None]:
    """While inside, launches are compiled for the GPU `target`, tuned ones in all configurations, and not run.

    launches: where each is added, also one that does not compile; None: that one raises what the compiler raised.
    """
    compile_ = JITFunction.run

    def run(kernel: JITFunction, *args, grid: Any = None, warmup: bool = False, **options) -> None:
        compiled, error = None, ""
        try:
            compiled = compile_(kernel, *args, grid=grid, warmup=True, **options)
        except Exception as raised:  # whatever the compiler raises is the finding
            if launches is None:
                raise
            error = " ".join(f"{type(raised).__name__}: {raised}".split())[-300:]
        if launches is not None:
            launches.append(_launch(kernel, args, options, compiled, error))

    def tuned(self: Tuned, grid: Any, *args, **options) -> None:
        for one in self.configs:
            self.kernel[grid](*args, **options, **one.all_kwargs())

    def autotuned(self: Autotuner, *args, **options) -> None:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        for one in self.prune_configs(options):
            self.fn.run(*args, **options, **one.all_kwargs())

    with (
        use_fake_gpu(GPUS[target]),
        even_selection(),
        equal_segments(),
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(Autotuner, "run", autotuned),
        mock.patch.object(Tuned, "_launch", tuned),
    ):
        yield


def _launch(kernel: JITFunction, args: tuple, options: dict[str, Any], compiled: Any, error: str) -> Launch:
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **options}
    given = {one.name: values.get(one.name, one.default) for one in kernel.params if one.is_constexpr}
    tensors = {id(x): x for name, x in values.items() if isinstance(x, Tensor) and name in kernel.arg_names}
    return Launch(
        name_of(kernel),
        {name: x for name, x in given.items() if x is not None},
        sum(map(stored_bytes, tensors.values())),
        compiled.metadata.num_warps if compiled else options.get("num_warps", 4),
        compiled.metadata.num_stages if compiled else options.get("num_stages", 3),
        compiled,
        error,
    )


def kernel_rows(launches: list[Launch], gpu: Gpu) -> list[dict[str, Any]]:
    """Return a row for every kernel, set of constants and configuration: what its code takes, and sums of its launches.

    Raises UserError without NVIDIA's cuobjdump.
    """
    rows: dict[tuple, dict[str, Any]] = {}
    for launch in launches:
        constants = " ".join(f"{name}={x}" for name, x in launch.constants.items())
        code = launch.compiled.hash if launch.compiled else launch.error
        key = (launch.kernel, constants, launch.warps, launch.stages, code)
        if key not in rows:
            rows[key] = {
                "kernel": launch.kernel,
                "constants": constants,
                "warps": launch.warps,
                "stages": launch.stages,
                "launches": 0,
                "argument_bytes": 0,
                "error": launch.error,
                **(_resources(launch.compiled, gpu) if launch.compiled else {}),
            }
        rows[key]["launches"] += 1
        rows[key]["argument_bytes"] += launch.argument_bytes
    return list(rows.values())


def _resources(compiled: Any, gpu: Gpu) -> dict[str, Any]:
    registers, stack = resource_usage(compiled.asm["cubin"])
    shared = compiled.metadata.shared
    fits = shared <= gpu.program_shared
    return {
        "registers": registers,
        "stack_bytes": stack,
        "shared_bytes": shared,
        "error": "" if fits else f"needs {shared} bytes of shared memory, there are {gpu.program_shared}",
    }


# NVIDIA's tools, which come with Triton.


def check_compiler(key: str, target: str) -> None:
    """Raise UserError for a GPU that is not known, under Triton's interpreter, and without NVIDIA's tools.

    key: of the configuration that names the GPU.
    """
    if target not in GPUS:
        raise unknown(key, target, list(GPUS))
    if interpreted():
        raise UserError("compiling for a GPU needs Triton's compiler: unset TRITON_INTERPRET")
    for name in ("ptxas", "cuobjdump"):
        _tool(name)


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Return registers of a thread and bytes of its stack, to which they spill. Raises UserError without cuobjdump."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [_tool("cuobjdump"), "-res-usage", str(file)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", said)[0]
    return int(registers), int(stack)


@functools.cache
def _tool(name: str) -> str:
    try:
        return getattr(triton.knobs.nvidia, name).path
    except RuntimeError as error:
        raise UserError(
            f"compiling for a GPU needs NVIDIA's {name}, which is missing from Triton's package: reinstall "
            f"triton, or set TRITON_{name.upper()}_PATH to that of a CUDA toolkit"
        ) from error
