"""Launches as machine code, kept by the content of what was compiled: source, types, constants, options, compiler."""

from __future__ import annotations

import gzip
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.bench.static.gpus import Gpu
from experiments.bench.static.specialise import Specialised
from experiments.bench.static.tools import machine_code, resource_usage
from experiments.data.cache import content_hash
from zoo.files import write_atomic

_FORMAT = 1
"""Of a stored result; another one is made anew."""


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a launch.

    registers: of a thread; stack: bytes of its memory for what does not fit into them; shared: bytes of a program
    intermediate: Triton's code (TTIR) after inlining; machine: the GPU's (SASS); error: why there is none of it
    """

    registers: int = 0
    stack: int = 0
    shared: int = 0
    warps: int = 4
    stages: int = 3
    intermediate: str = ""
    machine: str = ""
    error: str = ""


class Compiler:
    """Compiles for one GPU; what is in the folder already is read. `compiled` counts what was not."""

    def __init__(self, gpu: Gpu, folder: Path) -> None:
        self.gpu, self.folder, self.compiled = gpu, folder, 0
        self._known: dict[str, Compiled] = {}

    def __call__(self, launch: Specialised) -> tuple[str, Compiled]:
        """The machine code of a launch, and the name of its content; a kernel that does not compile has an `error`."""
        key = self._key(launch)
        if key not in self._known:
            self._known[key] = self._stored(key) or self._make(launch, key)
        return key, self._known[key]

    def _key(self, launch: Specialised) -> str:
        import triton

        options = sorted(launch.options.items())
        return content_hash([_FORMAT, triton.__version__, launch.source.hash(), self.gpu.sm, options])

    def _stored(self, key: str) -> Compiled | None:
        try:
            return Compiled(**json.loads(gzip.decompress((self.folder / f"{key}.json.gz").read_bytes())))
        except (OSError, EOFError, ValueError, TypeError):  # none yet, or damaged: made anew
            return None

    def _make(self, launch: Specialised, key: str) -> Compiled:
        self.compiled += 1
        made = compile_for(launch, self.gpu)
        if made.machine:  # what failed is tried again: the compiler may have been killed
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(
                self.folder / f"{key}.json.gz", gzip.compress(json.dumps(asdict(made)).encode(), mtime=0)
            )
        return made


def compile_for(launch: Specialised, gpu: Gpu) -> Compiled:
    """The machine code of a launch, made now; a kernel that does not compile has an `error`. Raises UserError without
    NVIDIA's tools."""
    import triton
    from triton.backends.compiler import GPUTarget

    facts: dict[str, Any] = {
        "warps": launch.options.get("num_warps", 4),
        "stages": launch.options.get("num_stages", 3),
    }
    try:
        # Triton's own cache keeps every stage of every kernel, a hundred times what is read here.
        with triton.knobs.cache.scope(), tempfile.TemporaryDirectory() as folder:
            triton.knobs.cache.dir = folder
            made = triton.compile(launch.source, target=GPUTarget("cuda", gpu.sm, 32), options=launch.options)
            cubin, intermediate = made.asm["cubin"], made.asm["ttir"]
    except Exception as error:  # whatever the compiler raises is the finding
        return Compiled(**facts, error=" ".join(f"{type(error).__name__}: {error}".split())[-300:])
    registers, stack = resource_usage(cubin)
    shared = made.metadata.shared
    too_much = f"needs {shared} bytes of shared memory, there are {gpu.program_shared}"
    return Compiled(
        registers,
        stack,
        shared,
        **facts,
        intermediate=intermediate,
        machine=machine_code(cubin),
        error=too_much if shared > gpu.program_shared else "",
    )
