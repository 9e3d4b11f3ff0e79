"""Bytes of main memory by argument, and products of matrices, of a launch."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from experiments.bench.static.control_flow import Executions
from experiments.bench.static.ttir import accessed_bytes, elements, pointing

_READS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.atomic_rmw", "tt.atomic_cas")
_WRITES = ("tt.store", "tt.descriptor_store", "tt.descriptor_scatter", "tt.atomic_rmw", "tt.atomic_cas")
_PRODUCT = re.compile(r"tensor<((?:\d+x)+)(\w+)> \* tensor<((?:\d+x)+)\w+>")


def moved_bytes(
    executions: Executions, values: dict[str, Any], programs: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes read and bytes written by argument: what all programs ask for, at most the tensor's memory once.

    Caches are so taken to serve whatever is asked for again; places that a mask leaves out count as asked for.
    """
    asked: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    for op, block, places in pointing(executions.function):
        for names, counted in zip((_READS, _WRITES), asked, strict=True):
            if op.name in names:
                for name in places:
                    counted[name] += accessed_bytes(op) * executions.of(block) * programs / len(places)
    read, written = (
        {name: round(min(count, _stored(values.get(name)))) for name, count in sorted(counted.items())}
        for counted in asked
    )
    return read, written


def _stored(x: Any) -> float:
    return (
        min(x.numel() * x.element_size(), x.untyped_storage().nbytes())
        if isinstance(x, Tensor)
        else float("inf")
    )


def written_arguments(executions: Executions) -> set[str]:
    """Return the arguments that a store in the kernel writes to, even one that no program executes."""
    return {name for op, _, places in pointing(executions.function) if op.name in _WRITES for name in places}


@dataclass(frozen=True)
class Product:
    """One product of matrices in a kernel's code, and how much of it a program executes.

    rows: of the left matrix, or of one of a batch; dtype: the left one's; precision: as the kernel asks for ("": the
    default); flops: of all times that a program executes it.
    """

    rows: int
    batched: bool
    dtype: str
    precision: str
    flops: float


def products(executions: Executions) -> list[Product]:
    """Every product of matrices in the kernel: 2·M·N·K FLOPs times how often a program executes it."""
    found = []
    for op, block in executions.function.ops():
        if op.name not in ("tt.dot", "tt.dot_scaled") or not (shapes := _PRODUCT.search(op.types)):
            continue
        left, right = shapes.group(1), shapes.group(3)
        *batch, rows, _ = (int(size) for size in left.split("x") if size)
        columns = int(right.split("x")[-2])
        flops = 2 * elements(left) * columns * executions.of(block)
        precision = re.search(r"inputPrecision = (\w+)", op.text)
        found.append(
            Product(rows, bool(batch), shapes.group(2), precision.group(1) if precision else "", flops)
        )
    return found
