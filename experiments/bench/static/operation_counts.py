"""The account of one library's form of an operation on a GPU: its kernels, forward and backward, and their sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from experiments.bench.cases import Call
from experiments.bench.memory_traffic import OperatorBytes
from experiments.bench.static import kernel_rows, time_model
from experiments.bench.static.capture import Capture, Launch, capturing
from experiments.bench.static.compiler import Compiler
from experiments.bench.static.fake_gpu import use_fake_gpu
from experiments.bench.static.gpus import Gpu
from experiments.bench.static.host_calls import equal_segments, even_selection

WAYS = ("forward", "backward")
Rows = list[dict[str, Any]]


def account(
    call: Call, form: Callable[[], Any], gpu: Gpu, cache: Path, ways: tuple[str, ...] = WAYS
) -> tuple[Rows, Rows]:
    """Rows of the operation, one a way, and rows of its kernels; `mode` is the way.

    call: whose tensors the form takes; ways: all, or the forward alone, which then runs without gradients, as
    decoding does. Raises what the form raises: a peer's error, say.
    """
    operation, kernels = [], []
    for way, launches, operators in _ways(call, form, Compiler(gpu, cache / "static"), gpu, ways):
        of_way = kernel_rows.rows(launches, gpu)
        kernels += [{"mode": way, **row} for row in of_way]
        operation.append({"mode": way, **_sums(of_way, operators, gpu)})
    return operation, kernels


def _ways(
    call: Call, form: Callable[[], Any], compiler: Compiler, gpu: Gpu, ways: tuple[str, ...]
) -> Iterator[tuple[str, list[Launch], OperatorBytes]]:
    """The launches and operators of each way."""
    launches: list[Launch] = []
    leaves = [x for x in call.tensors() if x.requires_grad]
    with use_fake_gpu(gpu), equal_segments(), even_selection(), capturing(Capture(compiler, launches.append)):
        with OperatorBytes() as operators, torch.set_grad_enabled(WAYS[1] in ways):
            outputs = [x for x in tree_leaves(form()) if isinstance(x, Tensor) and x.requires_grad]
        compiler.finish()
        yield WAYS[0], launches.copy(), operators
        if WAYS[1] not in ways:
            return
        launches.clear()
        with OperatorBytes() as operators:
            # Only of the first output: the rest are states, whose gradients training does not ask for.
            torch.autograd.grad(outputs[:1], leaves, [torch.empty_like(outputs[0])], allow_unused=True)
        compiler.finish()
        yield WAYS[1], launches, operators


def _sums(kernels: Rows, operators: OperatorBytes, gpu: Gpu) -> dict[str, Any]:
    """Launches, bytes, FLOPs and milliseconds of a way: its kernels in their best configurations, and operators."""
    best = [row for row in kernels if row["chosen"]]
    failed = {row["kernel"] for row in kernels} - {row["kernel"] for row in best}
    between = 1e3 * time_model.operator_seconds(operators.total, operators.operators, gpu)
    return {
        "launches": sum(row["launches"] for row in best) + operators.operators,
        "operators": operators.operators,
        "bytes": sum(row["bytes_read"] + row["bytes_written"] for row in best) + operators.total,
        "operator_bytes": operators.total,
        "flops": sum(row["flops"] for row in best),
        "modelled_milliseconds": sum(row["modelled_milliseconds"] for row in best) + between,
        "operator_milliseconds": between,
        "unknown_loops": sum(row["unknown_loops"] for row in best),
        "stack_bytes": max((row["stack_bytes"] for row in best), default=0),
        "error": f"no configuration can run of {', '.join(sorted(failed))}" if failed else "",
    }
