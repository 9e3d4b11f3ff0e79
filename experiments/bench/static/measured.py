"""What a GPU says of the same operations, where there is one: the times that the model stands in for."""

from __future__ import annotations

import functools
from statistics import median

import torch

from experiments.bench import timing
from experiments.bench.inputs import InputFactory
from experiments.bench.passes import MODES
from experiments.bench.static.operations import HALF, Operation


def measured(operation: Operation, length: int, repeats: int) -> dict[tuple[str, str], float]:
    """(library, way) -> milliseconds on this GPU, every library in turn; a backward is a pass of both less a forward.

    Raises what a library raises.
    """
    device, forms = torch.device("cuda"), {}
    for library in operation.libraries:
        call, run = operation.form(library, InputFactory(1, length, device, HALF))
        leaves = [x for x in call.tensors() if x.requires_grad]
        for mode, work in MODES.items():
            forms[library, mode] = functools.partial(work, run, leaves)
    times = {name: median(taken) for name, taken in timing.interleaved(forms, repeats, device).items()}
    found = {}
    for library in operation.libraries:
        forward, both = times[library, "forward"], times[library, "forward+backward"]
        found[library, "forward"], found[library, "backward"] = forward, both - forward
    return found
