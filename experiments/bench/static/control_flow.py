"""Execution counts of a kernel's loops and branches, from following its scalars for a sample of its programs."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Container, Iterable
from typing import Any

from torch import Tensor

from experiments.bench.static.program_slices import bounds, control_values
from experiments.bench.static.scalars import Place, evaluate
from experiments.bench.static.ttir import Block, Function, Op, carried

_SAMPLES = 12
"""Programs that are followed along each of a grid's axes."""
_CONTROL = ("scf.for", "scf.while", "scf.if", "cf.br", "cf.cond_br")
_PRODUCTS = ("tt.dot", "tt.dot_scaled")
_MOST_STEPS = 100_000


class Executions:
    """The number of times that a program executes each block of a kernel, on average over a launch.

    values: the kernel's arguments by name, numbers and tensors. unknown: loops and branches that depend on what other
    kernels would have written, taken once each. steps: of loops that multiply matrices, by a program. longest: steps of
    all loops in the program with most, over the mean.
    """

    def __init__(
        self, function: Function, values: dict[str, Any], grid: tuple[int, ...], unread: Container[int]
    ) -> None:
        self.function, self.grid, self.unread = function, grid, unread
        self.unknown: set[int] = set()
        self._values = {f"%{name}": Place(x) if isinstance(x, Tensor) else x for name, x in values.items()}
        self._needed = control_values(function)
        self._plain = _without_control(function)
        self._multiplying = _with_products(function)
        total: Counter[int] = Counter()
        steps, multiplying = [], []
        programs = list(_sample(grid, function, self._needed))
        for program in programs:
            self._counts: Counter[int] = Counter()
            self._steps = self._products = 0
            self._run(function.body, dict(self._values), program)
            total.update(self._counts)
            steps.append(self._steps)
            multiplying.append(self._products)
        self._mean = {block: count / len(programs) for block, count in total.items()}
        self.steps = sum(multiplying) / len(programs)
        self.longest = max(steps) * len(programs) / sum(steps) if any(steps) else 1.0

    def of(self, block: Block) -> float:
        """Return how often a program executes a block, on average over the launch."""
        return self._mean.get(id(block), 0.0)

    def _run(self, region: list[Block], values: dict[str, Any], program: tuple[int, ...]) -> list[Any]:
        """Execute a region; returns what its last operation hands on."""
        block, jumps = region[0], 0
        while True:
            self._counts[id(block)] += 1
            target, given = None, []
            for op in block.ops:
                if op.name == "scf.for":
                    self._for(op, values, program)
                elif op.name == "scf.while":
                    self._while(op, values, program)
                elif op.name == "scf.if":
                    self._if(op, values, program)
                elif op.name in ("cf.br", "cf.cond_br"):
                    target = self._jump(op, values)
                elif op.name in ("scf.yield", "scf.condition"):
                    given = [values.get(name) for name in op.operands]
                elif len(op.results) == 1 and op.results[0] in self._needed:
                    values[op.results[0]] = evaluate(op, values, program, self.grid, self.unread)
            jumps += 1
            found = next((other for other in region if other.label == target), None)
            if found is None or jumps > _MOST_STEPS:
                return given
            block = found

    def _for(self, op: Op, values: dict[str, Any], program: tuple[int, ...]) -> None:
        index = op.operands[0]
        low, high, step = (values.get(name) for name in bounds(op))
        (body,) = op.regions
        if None in (low, high, step) or step <= 0:
            self.unknown.add(id(op))
            low, high, step = 0, 1, 1
            values[index] = None
        trips = min(_MOST_STEPS, max(0, -(-(high - low) // step)))
        state = self._first(op, values)
        self._step(op, trips)
        if id(op) in self._plain and all(x is None for x in state):
            self._counts[id(body[0])] += trips
        else:
            for trip in range(trips):
                if id(op) not in self.unknown:
                    values[index] = low + trip * step
                values.update(zip((name for name, _ in carried(op)), state, strict=True))
                state = self._run(body, values, program)
        values.update(zip(op.results, state, strict=False))

    def _first(self, op: Op, values: dict[str, Any]) -> list[Any]:
        """Return the values that a loop carries into its first step, as far as they are followed."""
        return [values.get(first) if inner in self._needed else None for inner, first in carried(op)]

    def _step(self, op: Op, trips: int) -> None:
        self._steps += trips
        self._products += trips * (id(op) in self._multiplying)

    def _while(self, op: Op, values: dict[str, Any], program: tuple[int, ...]) -> None:
        before, after = op.regions
        names = [name for name, _ in carried(op)]
        state = self._first(op, values)
        for trip in range(_MOST_STEPS):
            values.update(zip(names, state, strict=True))
            goes_on, *handed = self._run(before, values, program)
            if goes_on is None:
                self.unknown.add(id(op))
            if goes_on == 0 or (goes_on is None and trip):
                break
            self._step(op, 1)
            values.update(zip(after[0].arguments, handed, strict=False))
            state = self._run(after, values, program)
        values.update(zip(op.results, handed, strict=False))

    def _if(self, op: Op, values: dict[str, Any], program: tuple[int, ...]) -> None:
        condition = values.get(op.operands[0])
        if condition is None:
            self.unknown.add(id(op))
        taken = op.regions[0 if condition is None or condition else 1 :][:1]
        given = self._run(taken[0], values, program) if taken else []
        known = given if condition is not None else [None] * len(op.results)
        values.update(zip(op.results, known, strict=False))

    def _jump(self, op: Op, values: dict[str, Any]) -> str:
        targets = re.findall(r"\^\w+", op.text)
        if len(targets) == 1:
            return targets[0]
        condition = values.get(op.operands[0])
        if condition is None:
            self.unknown.add(id(op))
        return targets[0 if condition is None or condition else 1]


def _without_control(function: Function) -> set[int]:
    """The loops that hold neither a loop nor a branch: one step is like another."""
    return {
        id(op)
        for op, _ in function.ops()
        if op.name == "scf.for" and not any(inner.name in _CONTROL for inner in op.regions[0][0].ops)
    }


def _with_products(function: Function) -> set[int]:
    """The loops whose own steps, not those of a loop inside, multiply matrices."""
    return {
        id(op)
        for op, _ in function.ops()
        if op.name in ("scf.for", "scf.while") and any(_multiplies(body) for body in op.regions)
    }


def _multiplies(region: list[Block]) -> bool:
    return any(
        op.name in _PRODUCTS or (op.name == "scf.if" and any(map(_multiplies, op.regions)))
        for block in region
        for op in block.ops
    )


def _sample(grid: tuple[int, ...], function: Function, needed: set[str]) -> Iterable[tuple[int, ...]]:
    """Programs evenly spread along the axes that loops and branches depend on, all of a short axis."""
    numbers = [op for op, _ in function.ops() if op.name == "tt.get_program_id"]
    asked = {op.text.split()[1] for op in numbers if op.results[0] in needed}
    grid = (*grid, 1, 1)[:3]
    axes = [_spread(size) if axis in asked else [0] for axis, size in zip("xyz", grid, strict=True)]
    return itertools.product(*axes)


def _spread(size: int) -> list[int]:
    count = min(size, _SAMPLES)
    return [(2 * place + 1) * size // (2 * count) for place in range(count)]
