"""Times of the same operations on a GPU, where there is one, to compare the model's times with."""

from __future__ import annotations

import functools
from statistics import median

import torch

from experiments.bench import timing
from experiments.bench.model_steps import InputFactory
from experiments.bench.static.compared_operations import HALF, Operation
from experiments.bench.static.operation_counts import WAYS
from experiments.bench.timing import MODES


def measure_times(operation: Operation, length: int, repeats: int) -> dict[tuple[str, str], float]:
    """Return (library, way) -> median milliseconds on this GPU, every library in turn.

    A backward is a pass of both less a forward. Raises what a library raises.
    """
    device, forms = torch.device("cuda"), {}
    for library in operation.libraries:
        call, run = operation.form(library, InputFactory(operation.batch, length, device, HALF))
        leaves = [x for x in call.tensors() if x.requires_grad]
        for mode in MODES if WAYS[1] in operation.ways else WAYS[:1]:
            forms[library, mode] = functools.partial(MODES[mode], run, leaves)
    times = {name: median(taken) for name, taken in timing.interleaved(forms, repeats, device).items()}
    found = {}
    for library in operation.libraries:
        found[library, "forward"] = forward = times[library, "forward"]
        if WAYS[1] in operation.ways:
            found[library, "backward"] = times[library, "forward+backward"] - forward
    return found
