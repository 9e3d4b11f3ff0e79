"""NVIDIA's tools that come with Triton: what a compiled kernel takes, and its machine code as text."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.bench.static.elf import code_sections
from zoo.errors import UserError

_ADDRESS = re.compile(r"\s*/\*([0-9a-f]+)\*/")
_BRANCH = re.compile(r"(\bBRA\b[^;]*?)0x([0-9a-f]+)")


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of its stack, to which registers spill. Raises UserError without cuobjdump."""
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", _output("cuobjdump", ["-res-usage"], cubin))[0]
    return int(registers), int(stack)


def machine_codes(cubins: Sequence[bytes], sm: int) -> list[str]:
    """The instructions (SASS) of kernels for one architecture, with labels where branches lead to. Raises UserError
    without nvdisasm.

    All at once and without their files: to begin with takes nvdisasm ten times as long as to read a kernel.
    """
    codes = [code_sections(cubin) for cubin in cubins]
    architecture = f"SM{sm}" + (
        "a" if sm >= 90 else ""
    )  # as Triton compiles: with what later ones do not have
    lines = _output("nvdisasm", ["--binary", architecture], b"".join(codes)).splitlines()
    instructions = [(int(found.group(1), 16), line) for line in lines if (found := _ADDRESS.match(line))]
    texts, start, place = [], 0, 0
    for code in codes:
        first, start = place, start + len(code)
        while place < len(instructions) and instructions[place][0] < start:
            place += 1
        texts.append(_labelled(instructions[first:place]))
    return texts


def _labelled(instructions: list[tuple[int, str]]) -> str:
    """The text with `.L_1f0:` before the instruction at address 1f0, to which a branch leads, as of a whole file."""
    targets = {int(found.group(2), 16) for _, line in instructions if (found := _BRANCH.search(line))}
    lines = []
    for address, line in instructions:
        lines += [f".L_{address:x}:"] if address in targets else []
        lines.append(_BRANCH.sub(r"\1`(.L_\2)", line))
    return "\n".join(lines)


def check_tools() -> None:
    """Raise UserError where a tool is missing."""
    for name in ("cuobjdump", "nvdisasm"):
        _tool(name)


def _output(tool: str, options: list[str], content: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(content)
        done = subprocess.run([_tool(tool), *options, str(file)], capture_output=True, text=True, check=True)
        return done.stdout


@functools.cache
def _tool(name: str) -> str:
    import triton

    try:
        return getattr(triton.knobs.nvidia, name).path
    except RuntimeError as error:
        raise UserError(
            f"counting instructions needs NVIDIA's {name}, which comes with Triton's package and is not there: install "
            f"triton from the package index again, or set TRITON_{name.upper()}_PATH to the one of a CUDA toolkit"
        ) from error
