"""The torch forms of recurrent operations against their recurrences, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from experiments.bench import passes, result_table, timing
from experiments.bench.cases.call import Call
from experiments.bench.inputs import InputFactory
from experiments.bench.timing import CPU

TOKENS, HEADS, WIDTH = 2048, 4, 64
MEMORIES, CHOSEN, CG_STEPS = 4, 2, 30
SLOW_MS = 5e3
"""A recurrence that takes longer is timed twice and no more."""
MODES = {"forward": passes.forward, "forward+backward": passes.forward_backward}


def run(tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Rows at B1 H4 K64; ratio: time of the recurrence over time of the form."""
    rows = []
    for name, make in tqdm(OPERATIONS.items(), desc="recurrence", unit="operation"):
        call = make(InputFactory(1, tokens, CPU, torch.float32))
        for mode, times in _time(call, repeats).items():
            peer = timing.summary(times["reference"])["milliseconds_median"]
            for backend, milliseconds in times.items():
                row = result_table.row("recurrence", name, milliseconds, peer, CPU, mode=mode, tokens=tokens)
                rows.append({**row, "backend": backend, "precision": "float32"})
                tqdm.write(result_table.format_row(rows[-1]))
    return rows


def _time(call: Call, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Mode -> backend -> milliseconds of every repetition."""
    leaves, found = [x for x in call.tensors() if x.requires_grad], {}
    for mode, work in MODES.items():
        outputs = {b: functools.partial(_output, call, b) for b in ("reference", "torch")}
        forms = {b: functools.partial(work, output, leaves) for b, output in outputs.items()}
        forms["torch"]()
        times = timing.interleaved(forms, 1, CPU, warm_up=0)
        again = repeats if times["reference"][0] < SLOW_MS else 1
        for backend, more in timing.interleaved(forms, again, CPU, warm_up=0).items():
            times[backend] += more
        found[mode] = times
    return found


def _output(call: Call, backend: str) -> Tensor:
    """The output o without the state, which is None here."""
    return call.run(backend)[0]


def _delta_rule(make: InputFactory, *gate_width: int) -> Call:
    q, k, v = make.unit(HEADS, WIDTH), make.unit(HEADS, WIDTH), make.normal(HEADS, WIDTH)
    return Call("delta_rule", (q, k, v, make.log_gate(HEADS, *gate_width), make.gate(HEADS)), {})


def _mesa(make: InputFactory) -> Call:
    q, k, v = make.unit(HEADS, WIDTH), make.unit(HEADS, WIDTH), make.normal(HEADS, WIDTH)
    gates = make.log_gate(HEADS), make.gate(HEADS)
    return Call("mesa", (q, k, v, *gates, make.ones(HEADS, WIDTH)), {"cg_steps": CG_STEPS})


def _memory_mixture(make: InputFactory) -> Call:
    """The chosen of MEMORIES routed memories and one that all tokens share."""
    each = MEMORIES + 1, HEADS
    q, k, v = make.unit(HEADS, WIDTH), make.unit(*each, WIDTH), make.normal(*each, WIDTH)
    gates = make.log_gate(*each), make.gate(*each)
    weights, routes = torch.softmax(make.normal(MEMORIES).detach(), -1).topk(CHOSEN, -1)
    routes, weights = F.pad(routes, (0, 1), value=MEMORIES), F.pad(weights, (0, 1), value=1.0)
    return Call("memory_mixture", (q, k, v, *gates, routes, weights), {})


OPERATIONS: dict[str, Callable[[InputFactory], Call]] = {
    "delta_rule": lambda make: _delta_rule(make, WIDTH),
    "delta_rule, a gate a head": _delta_rule,
    "mesa": _mesa,
    "memory_mixture": _memory_mixture,
}
