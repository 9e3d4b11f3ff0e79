"""suite=compile: compile every Triton kernel for an H200, on any machine, without a GPU.

The interpreter checks what kernels compute; this checks that a GPU's compiler takes them, and what they need there:
registers, memory that registers spill to, shared memory. The calls are those of `cases`, short and in bf16; kernels
are compiled where they would be launched, so that every launch configuration, size and type is the real one. The
outputs of such a call are uninitialised memory; attention by PyTorch in between therefore takes segments of equal
length, as boundaries may be such outputs.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from tqdm import tqdm

from experiments.bench.cases import CASES, matching_names
from experiments.bench.cases.call import Call
from experiments.bench.passes import forward, forward_backward
from experiments.schema import Config
from kernels import segments
from kernels.dispatch import never
from kernels.triton_common import interpreted
from zoo.errors import UserError

CAPABILITY = 90
SHARED_LIMIT = 232_448
"""Bytes of shared memory that one program can have on an H200 (227 KiB)."""

LENGTH = 256
_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.bool: "*i1",
}
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")

COLUMNS = (
    "model", "kernel", "constants", "warps", "stages", "registers", "stack_bytes", "shared_bytes", "seconds", "error",
)  # fmt: skip


def run(config: Config) -> list[dict[str, Any]]:
    """A row for every kernel and configuration. Raises UserError under the interpreter, which compiles nothing."""
    if interpreted():
        raise UserError("suite=compile needs the compiler: unset TRITON_INTERPRET")
    rows: list[dict[str, Any]] = []
    with _compiling(rows), _equal_segments():
        for name in tqdm(
            matching_names(config.bench.cases, list(CASES)),
            desc="compile",
            disable=not config.trainer.progress,
        ):
            case, before = CASES[name], len(rows)
            length = case.length or LENGTH
            calls = case.calls(length, length, torch.device("cpu"), torch.bfloat16)
            _trace(calls, case.backward)
            for row in rows[before:]:
                row["model"] = name
                tqdm.write(_line(row))
    return rows


def _trace(calls: list[Call], with_backward: bool) -> None:
    """Run the Triton forms of calls, whose launches compile only."""
    leaves = [x for call in calls for x in call.tensors() if x.requires_grad]

    def form() -> list[Any]:
        return [_triton(call) for call in calls]

    (forward_backward if with_backward else forward)(form, leaves)


def _triton(call: Call) -> Any:
    with call.registry.override("triton", refuses=never):  # tensors of a CPU would be refused
        return call.run("triton")


@contextlib.contextmanager
def _equal_segments() -> Iterator[None]:
    """While inside, attention over segments by PyTorch's operations takes them for segments of equal length."""
    eager = segments.segment_attention_eager

    def attend(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, **options) -> Tensor:
        count = len(cu_seqlens) - 1
        return eager(q, k, v, torch.arange(count + 1) * len(q) // count, **options)

    with mock.patch.object(segments, "segment_attention_eager", attend):
        yield


@contextlib.contextmanager
def _compiling(rows: list[dict[str, Any]]) -> Iterator[None]:
    """While inside, launching a kernel compiles it, in all configurations of a tuned one, and adds a row for each."""
    from triton.runtime.jit import JITFunction

    from kernels.triton_common.tuning import every_configuration

    seen: set[str] = set()

    def launch(kernel, *args, grid=None, warmup=False, **options) -> None:
        source, options, key = _source(kernel, args, options)
        if key not in seen:
            seen.add(key)
            rows.append(_compiled(kernel, source, options))

    with mock.patch.object(JITFunction, "run", launch), every_configuration():
        yield


def _source(kernel, args: tuple, options: dict[str, Any]) -> tuple[Any, dict[str, Any], str]:
    """The kernel with its arguments' types and constants, as a launch would specialise them."""
    from triton.compiler import ASTSource

    launch = {name: options.pop(name) for name in _OPTIONS if options.get(name) is not None}
    values = {**dict(zip(kernel.arg_names, args, strict=False)), **options}
    types, constants, hints = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value = values.get(parameter.name, parameter.default)
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            types[parameter.name], constants[place,] = "constexpr", value
        elif isinstance(value, Tensor):
            types[parameter.name], hints[place,] = _TYPES[value.dtype], [["tt.divisibility", 16]]
        elif isinstance(value, float):
            types[parameter.name] = "fp32"
        else:
            types[parameter.name] = "i32"
            if value % 16 == 0:
                hints[place,] = [["tt.divisibility", 16]]
    name = f"{kernel.fn.__module__}.{kernel.fn.__name__}"
    return ASTSource(kernel, types, constants, hints), launch, f"{name} {types} {constants} {launch}"


def _compiled(kernel, source, options: dict[str, Any]) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget

    constants = {source.fn.arg_names[place]: x for (place,), x in source.constants.items()}
    row: dict[str, Any] = {
        "model": "",
        "kernel": f"{kernel.fn.__module__.removeprefix('kernels.ops.')}.{kernel.fn.__name__}",
        "constants": " ".join(f"{name}={x}" for name, x in constants.items() if x is not None),
        "warps": options.get("num_warps", 4),
        "stages": options.get("num_stages", 3),
    }
    began = time.perf_counter()
    try:
        made = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options)
    except Exception as error:  # whatever the compiler raises is the finding
        return {**row, "error": " ".join(f"{type(error).__name__}: {error}".split())[-300:]}
    shared = made.metadata.shared
    return {
        **row,
        **_resource_usage(made.asm["cubin"]),
        "shared_bytes": shared,
        "seconds": round(time.perf_counter() - began, 1),
        "error": f"needs {shared} bytes of shared memory, there are {SHARED_LIMIT}"
        if shared > SHARED_LIMIT
        else "",
    }


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """Registers a thread, and bytes of its stack, to which registers spill."""
    import triton

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        usage = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(file)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", usage)[0]
    return {"registers": int(registers), "stack_bytes": int(stack)}


def _line(row: dict[str, Any]) -> str:
    what = f"{row['kernel']} [{row['constants']}; {row['warps']} warps]"
    if row["error"]:
        return f"FAILED {what}: {row['error']}"
    return (
        f"{what}: {row['registers']} registers, {row['stack_bytes']} B stack, {row['shared_bytes']} B shared"
    )
