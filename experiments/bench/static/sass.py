"""A kernel's machine code as text (SASS): its instructions and its loops."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"\s*(\.L_\w+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_SPIN = 8
"""A loop of fewer instructions waits for something: a copy, a barrier."""

CLASSES = {
    "tensor_async": ("HGMMA", "QGMMA", "IGMMA"),
    "tensor_sync": ("HMMA", "QMMA", "IMMA", "DMMA"),
    "special": ("MUFU",),
    "shuffles": ("SHFL",),
    "shared": ("LDS", "STS", "LDSM", "STSM"),
    "global": ("LDG", "STG", "LDGSTS", "RED", "ATOM", "UTMALDG", "UTMASTG"),
    "spills": ("LDL", "STL"),
}
"""Kinds of instructions that are counted apart, by what stands before the first dot."""


@dataclass(frozen=True)
class Loop:
    """A loop by its first and last instruction, counted from 0."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """The number of its instructions."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class Code:
    """Names of a kernel's instructions, such as "HGMMA", in the order of their addresses; its loops, outer first."""

    instructions: list[str]
    loops: list[Loop]


def parse(text: str) -> Code:
    """Instructions and loops: what a branch back encloses; branches back to one place are one loop."""
    names: list[str] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label.group(1)] = len(names)
        elif found := _INSTRUCTION.match(line):
            name, rest = found.group(1).partition(".")[0], found.group(2)
            if name == "BRA" and (target := _TARGET.search(rest)):
                branches.append((len(names), target.group(1)))
            if name != "NOP":
                names.append(name)
    last: dict[int, int] = {}
    for place, label in branches:
        if labels.get(label, place) < place:
            last[labels[label]] = max(last.get(labels[label], 0), place)
    loops = [Loop(first, end) for first, end in last.items() if end - first + 1 >= _SPIN]
    return Code(names, sorted(loops, key=lambda loop: (loop.first, -loop.last)))


def kind(name: str) -> str:
    """The class in CLASSES that an instruction belongs to; "other" for those of none."""
    return next((which for which, names in CLASSES.items() if name in names), "other")
