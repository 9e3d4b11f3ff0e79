"""Instructions that a warp executes: those of the machine code, in a loop times the steps that its source takes.

The compiler keeps most loops of Triton's intermediate code as loops, unrolls short ones, and makes loops of its own
(slow paths, waiting). Loops of both are matched by their nesting: in order where they are as many, else those of
several steps, and of these the largest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from experiments.bench.static.control_flow import Executions
from experiments.bench.static.sass import CLASSES, Code, Loop, kind
from experiments.bench.static.ttir import Block, Op, result_elements

_FREE = (
    "arith.constant",
    "tt.splat",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.make_range",
    "tt.reshape",
    "tt.trans",
)
"""Operations that only name what is there in another shape."""


@dataclass
class _Node:
    """A loop of either code: its size, what it holds, how often its body is executed by a program."""

    size: float
    executions: float = 1.0
    loop: Loop | None = None
    inner: list[_Node] = field(default_factory=list)


def instruction_counts(
    code: Code, executions: Executions
) -> tuple[dict[str, float], list[tuple[int, float]]]:
    """Instructions that a warp executes, in all ("instructions") and by class, and (size, executions) of every loop."""
    source = _source_loops(executions)
    machine = _machine_loops(code.loops, len(code.instructions))
    machine.executions = source.executions
    _match(source.inner, machine.inner, source.executions)
    times = [machine.executions] * len(code.instructions)
    loops = []
    for node in _all(machine.inner):
        times[node.loop.first : node.loop.last + 1] = [node.executions] * node.loop.size
        loops.append((node.loop.size, node.executions))
    counts: Counter[str] = Counter(dict.fromkeys(CLASSES, 0.0))
    for name, count in zip(code.instructions, times, strict=True):
        counts[kind(name)] += count
    total = sum(counts.values())
    del counts["other"]
    return {"instructions": total, **counts}, loops


def _all(nodes: list[_Node]) -> list[_Node]:
    """Loops before those that they hold, so that inner ones have the last word."""
    return [found for node in nodes for found in (node, *_all(node.inner))]


def _match(source: list[_Node], machine: list[_Node], outside: float) -> None:
    """Give loops of machine code the executions of those that they come from; of what has none, those around it."""
    kept = min(len(source), len(machine))
    repeated = [node for node in source if node.executions > outside]
    if kept <= len(repeated):  # the compiler has dissolved loops: those of a single step before others
        source = repeated
    chosen = (_largest(source, kept), _largest(machine, kept))
    for node in machine:
        node.executions = outside
    for ours, theirs in zip(*chosen, strict=True):
        theirs.executions = ours.executions
        _match(ours.inner, theirs.inner, ours.executions)


def _largest(nodes: list[_Node], count: int) -> list[_Node]:
    """So many of the largest, in their order."""
    places = sorted(range(len(nodes)), key=lambda place: -nodes[place].size)[:count]
    return [nodes[place] for place in sorted(places)]


def _machine_loops(loops: list[Loop], length: int) -> _Node:
    root = _Node(length, loop=Loop(0, length - 1))
    around = [root]
    for loop in loops:
        while loop.first > around[-1].loop.last or loop.last > around[-1].loop.last:
            around.pop()
        node = _Node(loop.size, loop=loop)
        around[-1].inner.append(node)
        around.append(node)
    return root


def _source_loops(executions: Executions) -> _Node:
    """The loops of the intermediate code, inside a node for what is outside of any."""
    return _gathered(executions, [executions.function.body])


def _gathered(executions: Executions, regions: list[list[Block]]) -> _Node:
    """A node of these regions: its executions are the mean over its blocks, branches included, by their weight."""
    node, blocks = _Node(0.0), []
    waiting = [block for region in regions for block in region]
    while waiting:
        block = waiting.pop(0)
        blocks.append((sum(map(_weight, block.ops)), executions.of(block)))
        for op in block.ops:
            if op.name in ("scf.for", "scf.while"):
                node.inner.append(_gathered(executions, op.regions))
            elif op.name == "scf.if":
                waiting += [inner for branch in op.regions for inner in branch]
    own = sum(weight for weight, _ in blocks)
    if own:
        node.executions = sum(weight * count for weight, count in blocks) / own
    node.size = own + sum(inner.size for inner in node.inner)
    return node


def _weight(op: Op) -> float:
    """About what an operation costs in instructions: the elements of its result; 1 for numbers that are no tensor."""
    return 0.0 if op.name in _FREE or not op.results else result_elements(op)
