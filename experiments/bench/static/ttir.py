"""Triton's intermediate code (TTIR, text) as operations in regions: what its author wrote, before any layout."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LOCATION = re.compile(r"\s*loc\(.*\)$")
_RESULTS = re.compile(r"(%[\w.$-]+)(?::(\d+))? = (.*)")
_NAME = re.compile(r'"?(\w+\.[\w.]+)')
_VALUE = re.compile(r"%[\w.$-]+(?:#\d+)?")
_POINTED = re.compile(r"((?:\d+x)*)!tt\.ptr<(\w+)")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(\w+)")
_BITS = {"bf16": 16, "index": 64}


@dataclass
class Block:
    """Operations one after the other; arguments: names that the region's owner gives values."""

    label: str
    arguments: list[str]
    ops: list[Op] = field(default_factory=list)


@dataclass
class Op:
    """One operation: names of its results and operands, its text after the `=`, its regions of blocks."""

    name: str
    results: list[str]
    operands: list[str]
    text: str
    regions: list[list[Block]] = field(default_factory=list)

    @property
    def types(self) -> str:
        """Return the types, which stand after the last lone colon."""
        return self.text.rpartition(" : ")[2]


@dataclass
class Function:
    """A kernel: names of its arguments (without %), and its body."""

    arguments: list[str]
    body: list[Block]

    def ops(self) -> Iterator[tuple[Op, Block]]:
        """Every operation with its block, in the order of the text; those inside reductions and scans too."""
        return _inside(self.body)


def _inside(region: list[Block]) -> Iterator[tuple[Op, Block]]:
    for block in region:
        for op in block.ops:
            yield op, block
            for inner in op.regions:
                yield from _inside(inner)


def parse(text: str) -> Function:
    """The one public function of a module. Raises ValueError where there is none."""
    root = Op("root", [], [], "", [[Block("", [])]])
    owners = [root]
    for line in text.splitlines():
        line = _LOCATION.sub("", line).strip()
        if not line or line.startswith(("#", "!", "//", "{-#")):
            continue
        if line.startswith("}"):
            if line.endswith("{"):  # `} else {`, `} do {`: one more region of the same operation
                owners[-1].regions.append([Block("", [])])
            else:
                owners.pop()
        elif line.startswith("^"):
            region = owners[-1].regions[-1]
            if not region[-1].label and not region[-1].ops:
                region.pop()  # a region that begins with a label has no block before it
            region.append(Block(re.match(r"\^\w+", line).group(), _VALUE.findall(line.partition("(")[2])))
        else:
            op = _operation(line)
            owners[-1].regions[-1][-1].ops.append(op)
            if line.endswith("{"):
                op.regions.append([Block("", [])])
                owners.append(op)
    for op, _ in _inside(root.regions[0]):
        if op.name == "tt.func" and " public " in op.text:
            return Function(re.findall(r"%(\w+): ", op.text.partition(" attributes ")[0]), op.regions[0])
    raise ValueError("no public function in Triton's intermediate code")


def _operation(line: str) -> Op:
    found = _RESULTS.match(line)
    base, count, text = found.groups() if found else (None, None, line)
    results = [] if base is None else [f"{base}#{n}" for n in range(int(count))] if count else [base]
    name = _NAME.match(text)
    return Op(name.group(1) if name else "", results, _VALUE.findall(text), text)


def carried(op: Op) -> list[tuple[str, str]]:
    """Return the names that a loop carries from step to step, each with the name of its first value."""
    inside = re.search(r"(?:iter_args|scf\.while )\((.*?)\)\s*(?:->|:)", op.text)
    return re.findall(r"(%[\w.$-]+) = (%[\w.$-]+(?:#\d+)?)", inside.group(1)) if inside else []


def ending(region: list[Block]) -> list[str]:
    """The operands of a region's last `scf.yield`; nothing where it has none."""
    last = region[-1].ops[-1] if region and region[-1].ops else None
    return last.operands if last is not None and last.name == "scf.yield" else []


def accessed_bytes(op: Op) -> int:
    """Bytes that one execution of a load or a store asks for, masked places included."""
    found = _POINTED.search(op.types) or _TENSOR.search(op.types)
    if found is None:
        return 0
    return elements(found.group(1)) * bits(found.group(2)) // 8


def elements(shape: str) -> int:
    """The number of elements of a shape as TTIR writes it, "64x128x"; 1 for ""."""
    return math.prod(int(size) for size in shape.split("x") if size)


def bits(dtype: str) -> int:
    """The size of a type as TTIR writes it: 16 for bf16, 8 at least, as memory has it."""
    return max(8, _BITS.get(dtype) or int(re.search(r"\d+", dtype).group()))


def result_elements(op: Op) -> int:
    """The elements of an operation's first result; 1 for numbers that are no tensor."""
    found = _TENSOR.search(op.types.rpartition("->")[2])
    return elements(found.group(1)) if found else 1


def pointing(function: Function) -> Iterator[tuple[Op, Block, frozenset[str]]]:
    """Every operation in the order of the text, its block, and the arguments that its first operand may point into.

    Regions beside one another use the same names again, so that a name means what it was last given.
    """
    return _pointing(function.body, {f"%{name}": frozenset([name]) for name in function.arguments})


def _pointing(
    region: list[Block], into: dict[str, frozenset[str]]
) -> Iterator[tuple[Op, Block, frozenset[str]]]:
    for block in region:
        for op in block.ops:
            yield op, block, into.get(op.operands[0], frozenset()) if op.operands else frozenset()
            loop = carried(op) if op.name in ("scf.for", "scf.while") else []
            into |= {inner: into.get(first, frozenset()) for inner, first in loop}
            held = [into[inner] for inner, _ in loop]
            ends = [held] if loop else []
            for inner in op.regions:
                yield from _pointing(inner, into)
                if op.name == "scf.if":
                    ends.append([into.get(value, frozenset()) for value in ending(inner)])
            if op.name.startswith("scf."):
                for place, result in enumerate(op.results):
                    into[result] = frozenset().union(*(end[place] for end in ends if place < len(end)))
            elif op.results and ("!tt.ptr" in op.types or "tensordesc" in op.types):
                into[op.results[0]] = frozenset().union(*(into.get(x, frozenset()) for x in op.operands))
            else:  # a number, whatever its name pointed into in another region
                for result in op.results:
                    into.pop(result, None)
