"""NVIDIA's tools that come with Triton: what a compiled kernel takes, and its machine code as text."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from pathlib import Path

from zoo.errors import UserError


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of its stack, to which registers spill. Raises UserError without cuobjdump."""
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", _output("cuobjdump", "-res-usage", cubin))[0]
    return int(registers), int(stack)


def machine_code(cubin: bytes) -> str:
    """The instructions (SASS) with their labels. Raises UserError without nvdisasm."""
    return _output("nvdisasm", "-c", cubin)


def check_tools() -> None:
    """Raise UserError where a tool is missing."""
    for name in ("cuobjdump", "nvdisasm"):
        _tool(name)


def _output(tool: str, option: str, cubin: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([_tool(tool), option, str(file)], capture_output=True, text=True, check=True)
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
