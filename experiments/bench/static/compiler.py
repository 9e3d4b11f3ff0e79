"""Launches as machine code, kept by the content of what was compiled: source, types, constants, options, compiler."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.bench.static.gpus import Gpu
from experiments.bench.static.specialization import Specialised
from experiments.bench.static.tools import machine_codes, resource_usage
from experiments.bench.static.translate import Translator
from experiments.data.cache import content_hash
from zoo.files import write_atomic

_FORMAT = 1
"""Of a stored result; another one is made anew."""
_AT_ONCE = 16
"""Kernels whose machine code is read at once: a killed process loses as many at most."""


@dataclass
class Compiled:
    """A launch as the compiler made it.

    registers: of a thread; stack: bytes of its memory for what does not fit into them; shared: bytes of a program
    intermediate: Triton's code (TTIR) after inlining; machine: the GPU's (SASS), once the
    compiler has finished; error: why there is none of it
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
    """Compiles for one GPU; what is in the folder already is read. `compiled` counts what was not.

    Reading machine code as text is done for several kernels at once: `finish` makes and stores what is still due.
    """

    def __init__(self, gpu: Gpu, folder: Path) -> None:
        self.gpu, self.folder, self.compiled = gpu, folder, 0
        self._known: dict[str, Compiled] = {}
        self._due: dict[str, bytes] = {}
        self._translate = Translator(gpu.sm)

    def __call__(self, launch: Specialised) -> tuple[str, Compiled]:
        """A launch compiled, and the name of its content; a kernel that does not compile has an `error`."""
        key = self._key(launch)
        if key not in self._known:
            self._known[key] = self._stored(key) or self._make(launch, key)
        return key, self._known[key]

    def finish(self) -> None:
        """Fill in and store the machine code of all that was compiled. Raises UserError without nvdisasm."""
        if not self._due:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for key, text in zip(self._due, machine_codes(list(self._due.values()), self.gpu.sm), strict=True):
            made = self._known[key]
            made.machine = text
            content = gzip.compress(json.dumps(asdict(made)).encode(), mtime=0)
            write_atomic(self.folder / f"{key}.json.gz", content)
        self._due.clear()

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
        if len(self._due) >= _AT_ONCE:
            self.finish()
        made, cubin = compile_for(launch, self.gpu, self._translate)
        if cubin:  # what failed is tried again: the compiler may have been killed
            self._due[key] = cubin
        return made


def compile_for(launch: Specialised, gpu: Gpu, translate: Translator) -> tuple[Compiled, bytes]:
    """A launch compiled now but for its machine code, and its binary; a kernel that does not compile has an `error`.

    Raises UserError without NVIDIA's tools.
    """
    facts: dict[str, Any] = {
        "warps": launch.options.get("num_warps", 4),
        "stages": launch.options.get("num_stages", 3),
    }
    try:
        intermediate, binary = translate(launch)
    except Exception as error:  # whatever the compiler raises is the finding
        return Compiled(**facts, error=" ".join(f"{type(error).__name__}: {error}".split())[-300:]), b""
    registers, stack = resource_usage(binary.cubin)
    too_much = f"needs {binary.shared} bytes of shared memory, there are {gpu.program_shared}"
    error = too_much if binary.shared > gpu.program_shared else ""
    made = Compiled(registers, stack, binary.shared, **facts, intermediate=intermediate, error=error)
    return made, binary.cubin
