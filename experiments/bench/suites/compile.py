"""suite=compile: compile every Triton kernel for an H200, on any machine, without a GPU.

The interpreter checks what kernels compute; this checks that a GPU's compiler takes them, and what they need there:
registers, memory that registers spill to, shared memory. The calls are those of `cases`, short and in bf16; kernels
are compiled where they would be launched, so that every launch configuration, size and type is the real one. The
outputs of such a call are uninitialised memory; attention by PyTorch in between therefore takes segments of equal
length, as boundaries may be such outputs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from tqdm import tqdm

from experiments.bench.cases import CASES, Call, matching_names
from experiments.bench.static.compiler import compile_for
from experiments.bench.static.gpus import GPUS
from experiments.bench.static.host_calls import equal_segments, on_triton
from experiments.bench.static.specialization import Specialised, specialise
from experiments.bench.static.translate import Translator
from experiments.bench.timing import forward, forward_backward
from experiments.configuration.schema import Config
from kernels.triton_common import interpreted
from zoo.errors import UserError

GPU = GPUS["H200"]

COLUMNS = (
    "model", "kernel", "constants", "warps", "stages", "registers", "stack_bytes", "shared_bytes", "seconds", "error",
)  # fmt: skip


def run(config: Config) -> list[dict[str, Any]]:
    """A row for every kernel and configuration. Raises UserError under the interpreter, which compiles nothing."""
    if interpreted():
        raise UserError("suite=compile needs the compiler: unset TRITON_INTERPRET")
    rows: list[dict[str, Any]] = []
    with _compiling(rows), equal_segments():
        for name in tqdm(
            matching_names(config.bench.cases, list(CASES)),
            desc="compile",
            disable=not config.trainer.progress,
        ):
            case, before = CASES[name], len(rows)
            length = case.length or case.compiled
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
        return [on_triton(call) for call in calls]

    (forward_backward if with_backward else forward)(form, leaves)


@contextlib.contextmanager
def _compiling(rows: list[dict[str, Any]]) -> Iterator[None]:
    """While inside, launching a kernel compiles it, in all configurations of a tuned one, and adds a row for each."""
    from triton.runtime.jit import JITFunction

    from kernels.triton_common.tuning import every_configuration

    seen: set[str] = set()
    translate = Translator(GPU.sm)

    def launch(kernel, *args, grid=None, warmup=False, **options) -> None:
        made = specialise(kernel, args, options)
        if (key := f"{made.source.hash()} {made.options}") not in seen:
            seen.add(key)
            rows.append(_row(kernel, made, translate))

    with mock.patch.object(JITFunction, "run", launch), every_configuration():
        yield


def _row(kernel: Any, launch: Specialised, translate: Translator) -> dict[str, Any]:
    from kernels.triton_common.tuning import name_of

    began = time.perf_counter()
    made, binary = compile_for(launch, GPU, translate)
    row = {
        "model": "",
        "kernel": name_of(kernel),
        "constants": " ".join(f"{name}={x}" for name, x in launch.constants.items()),
        "warps": made.warps,
        "stages": made.stages,
        "error": made.error,
    }
    if not binary:
        return row
    return {
        **row,
        "registers": made.registers,
        "stack_bytes": made.stack,
        "shared_bytes": made.shared,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _line(row: dict[str, Any]) -> str:
    what = f"{row['kernel']} [{row['constants']}; {row['warps']} warps]"
    if row["error"]:
        return f"FAILED {what}: {row['error']}"
    return (
        f"{what}: {row['registers']} registers, {row['stack_bytes']} B stack, {row['shared_bytes']} B shared"
    )
