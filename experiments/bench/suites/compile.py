"""suite=compile: compile every Triton kernel for bench.target, an H200 for one, on any machine, without a GPU.

The interpreter checks what kernels compute; this checks that a GPU's compiler takes them, and counts what they need.
The calls are those of `cases`, forward and backward, in bf16, short unless bench.lengths says more. Kernels are
compiled where they would be launched, so that every launch configuration, size and type is the real one. One row for
every kernel, set of constants and configuration:

    launches         of the call, in this configuration
    argument_bytes   of the tensors that these launches take, each tensor once a launch
    registers        of a thread
    stack_bytes      of a thread: memory for what does not fit into registers
    shared_bytes     of shared memory, a program
    error            why it did not compile, or would not run
"""

from __future__ import annotations

from typing import Any

import torch
from tqdm import tqdm

from experiments.bench.cases import CASES, Case, matching_names
from experiments.bench.compiled import GPUS, Launch, check_compiler, compiling_for, kernel_rows, on_triton
from experiments.bench.timing import forward, forward_backward
from experiments.configuration.schema import Config

COLUMNS = (
    *("model", "target", "tokens", "kernel", "constants", "warps", "stages", "launches", "argument_bytes"),
    *("registers", "stack_bytes", "shared_bytes", "error"),
)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for every kernel and configuration. Raises UserError under the interpreter, which compiles nothing."""
    target, rows = config.bench.target, []
    check_compiler("bench.target", target)
    names = matching_names(config.bench.cases, list(CASES))
    for name in tqdm(names, desc="compile", disable=not config.trainer.progress):
        case = CASES[name]
        for length in [case.length] if case.length else config.bench.lengths or [case.compiled]:
            for facts in kernel_rows(_launches(case, length, target), GPUS[target]):
                rows.append({"model": name, "target": target, "tokens": length, **facts})
                tqdm.write(_line(rows[-1]))
    return rows


def _launches(case: Case, length: int, target: str) -> list[Launch]:
    """The launches of a case's calls, which compile only."""
    launches: list[Launch] = []
    calls = case.calls(length, length, torch.device("cpu"), torch.bfloat16)
    leaves = [x for call in calls for x in call.tensors() if x.requires_grad]
    with compiling_for(target, launches):
        (forward_backward if case.backward else forward)(lambda: [on_triton(call) for call in calls], leaves)
    return launches


def _line(row: dict[str, Any]) -> str:
    what = f"{row['kernel']} [{row['constants']}; {row['warps']} warps]"
    if row["error"]:
        return f"FAILED {what}: {row['error']}"
    return (
        f"{what}: {row['registers']} registers, {row['stack_bytes']} B stack, {row['shared_bytes']} B shared, "
        f"{row['launches']} {'launch' if row['launches'] == 1 else 'launches'}"
    )
