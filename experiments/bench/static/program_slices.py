"""Slices of kernels: the few scalars that loops and branches depend on, which have to be followed."""

from __future__ import annotations

from collections import defaultdict

from experiments.bench.static.ttir import Block, Function, Op, carried, ending


def control_values(function: Function) -> set[str]:
    """Names of all values that a loop's bounds, a branch's condition or a jump depend on."""
    sources: dict[str, list[str]] = defaultdict(list)
    waiting: list[str] = []
    for op, _ in function.ops():
        if op.name == "scf.for":
            waiting += bounds(op)
            _join(sources, op, ending(op.regions[0]))
        elif op.name == "scf.while":
            condition, *handed = _condition(op.regions[0])
            waiting.append(condition)
            _join(sources, op, ending(op.regions[1]), results=handed)
            for name, value in zip(op.regions[1][0].arguments, handed, strict=False):
                sources[name].append(value)
        elif op.name == "scf.if":
            waiting.append(op.operands[0])
            for region in op.regions:
                for result, value in zip(op.results, ending(region), strict=False):
                    sources[result].append(value)
        elif op.name == "cf.cond_br":
            waiting.append(op.operands[0])
        else:
            for result in op.results:
                sources[result] += op.operands
    found: set[str] = set()
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += sources[name]
    return found


def bounds(op: Op) -> list[str]:
    """The names of a `scf.for`'s first index, the one past its last, and its step."""
    return op.operands[1:4]  # the text begins with the index itself


def _condition(region: list[Block]) -> list[str]:
    """The operands of `scf.condition`: whether to go on, and what is handed to the body and to the results."""
    return next(op.operands for op in region[-1].ops if op.name == "scf.condition")


def _join(
    sources: dict[str, list[str]], op: Op, yielded: list[str], results: list[str] | None = None
) -> None:
    """Add a loop to sources: carried values come from the first one and the step before, results from the last step."""
    for place, (inner, first) in enumerate(carried(op)):
        before = [first, *yielded[place : place + 1]]
        sources[inner] += before
        if results is None and place < len(op.results):
            sources[op.results[place]] += before
    for result, value in zip(op.results, results or [], strict=False):
        sources[result].append(value)
