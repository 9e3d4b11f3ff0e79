"""The torch forms of recurrent operations against their recurrences, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

import kernels
from experiments.bench import result_table, timing

TOKENS, HEADS, WIDTH = 2048, 4, 64
MEMORIES, CHOSEN, CG_STEPS = 4, 2, 30
CPU = torch.device("cpu")
# What takes so long once is timed twice and no more.
SLOW_MS = 5e3

Call = Callable[[str], Tensor]


def run(tokens: int, repeats: int) -> list[dict[str, Any]]:
    """Rows at B1 H4 K64; ratio: time of the recurrence over time of the form."""
    rows = []
    for name, make in tqdm(OPERATIONS.items(), desc="recurrence", unit="operation"):
        call, leaves = make(tokens)
        for mode, work in (("forward", _forward), ("forward+backward", _both)):
            calls = {b: functools.partial(work, call, leaves, b) for b in ("reference", "torch")}
            calls["torch"]()
            times = timing.interleaved(calls, 1, CPU, warm_up=0)
            again = repeats if times["reference"][0] < SLOW_MS else 1
            for backend, more in timing.interleaved(calls, again, CPU, warm_up=0).items():
                times[backend] += more
            peer = timing.summary(times["reference"])["milliseconds_median"]
            for backend, milliseconds in times.items():
                row = result_table.row("recurrence", name, milliseconds, peer, CPU, mode=mode, tokens=tokens)
                rows.append({**row, "backend": backend, "precision": "float32"})
                tqdm.write(result_table.line(rows[-1]))
    return rows


def _forward(call: Call, leaves: list[Tensor], backend: str) -> None:
    with torch.no_grad():
        call(backend)


def _both(call: Call, leaves: list[Tensor], backend: str) -> None:
    torch.autograd.grad(call(backend).square().sum(), leaves)


def _draw(*shape: int) -> Tensor:
    return torch.randn(*shape)


def _keys(*shape: int) -> Tensor:
    return F.normalize(_draw(*shape), dim=-1)


def _delta_rule(tokens: int, *gate_width: int) -> tuple[Call, list[Tensor]]:
    shape = 1, tokens, HEADS
    q, k, v = _keys(*shape, WIDTH), _keys(*shape, WIDTH), _draw(*shape, WIDTH)
    g, beta = F.logsigmoid(_draw(*shape, *gate_width) + 3), torch.sigmoid(_draw(*shape))
    leaves = _leaves(q, k, v, g, beta)
    return lambda backend: kernels.delta_rule(*leaves, backend=backend)[0], leaves


def _mesa(tokens: int) -> tuple[Call, list[Tensor]]:
    shape = 1, tokens, HEADS
    q, k, v = _keys(*shape, WIDTH), _keys(*shape, WIDTH), _draw(*shape, WIDTH)
    g, beta = F.logsigmoid(_draw(*shape) + 3), torch.sigmoid(_draw(*shape))
    leaves = _leaves(q, k, v, g, beta, torch.ones(HEADS, WIDTH))
    return lambda backend: kernels.mesa(*leaves, cg_steps=CG_STEPS, backend=backend)[0], leaves


def _memory_mixture(tokens: int) -> tuple[Call, list[Tensor]]:
    each = 1, tokens, MEMORIES + 1, HEADS
    q, k, v = _keys(1, tokens, HEADS, WIDTH), _keys(*each, WIDTH), _draw(*each, WIDTH)
    g, beta = F.logsigmoid(_draw(*each) + 3), torch.sigmoid(_draw(*each))
    weights, routes = torch.softmax(_draw(1, tokens, MEMORIES), -1).topk(CHOSEN, -1)
    routes = F.pad(routes, (0, 1), value=MEMORIES)
    leaves = _leaves(q, k, v, g, beta)
    weights = F.pad(weights, (0, 1), value=1.0)
    return lambda backend: kernels.memory_mixture(*leaves, routes, weights, backend=backend)[0], leaves


def _leaves(*tensors: Tensor) -> list[Tensor]:
    return [x.requires_grad_() for x in tensors]


OPERATIONS: dict[str, Callable[[int], tuple[Call, list[Tensor]]]] = {
    "delta_rule": lambda tokens: _delta_rule(tokens, WIDTH),
    "delta_rule, a gate a head": _delta_rule,
    "mesa": _mesa,
    "memory_mixture": _memory_mixture,
}
