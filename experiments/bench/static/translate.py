"""From a kernel's source to a GPU's binary, once for all configurations that come to the same."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from experiments.bench.static.specialization import Specialised
from experiments.data.cache import content_hash


@dataclass(frozen=True)
class Binary:
    """A GPU's code (an ELF file), and the bytes of shared memory that a program of it asks for."""

    cubin: bytes
    shared: int


class _Made(Exception):
    """Ends a compilation whose binary is there already."""


@dataclass
class Translator:
    """Makes binaries for one architecture (`sm`, 90 for 9.0).

    Configurations differ in numbers that may change nothing: stages of a loop that loads nothing ahead, say. Once
    Triton has laid out data and pipelined loops (TTGIR), equal text gives equal code: LLVM and ptxas run
    once.
    """

    sm: int
    _binaries: dict[str, Binary] = field(default_factory=dict)

    def __call__(self, launch: Specialised) -> tuple[str, Binary]:
        """Triton's intermediate code (TTIR) after inlining, and the binary. Raises what the compiler raises."""
        import triton
        from triton.backends.compiler import GPUTarget

        seen: dict[str, str] = {}
        # Triton's own cache keeps every stage of every kernel, a hundred times what is read here.
        with triton.knobs.cache.scope(), tempfile.TemporaryDirectory() as folder, self._watching(seen):
            triton.knobs.cache.dir = folder
            try:
                made = triton.compile(
                    launch.source, target=GPUTarget("cuda", self.sm, 32), options=launch.options
                )
            except _Made:
                pass
            else:
                self._binaries[seen["key"]] = Binary(made.asm["cubin"], made.metadata.shared)
        return seen["ttir"], self._binaries[seen["key"]]

    @contextmanager
    def _watching(self, seen: dict[str, str]) -> Iterator[None]:
        """While inside, a compilation notes its intermediate code, and ends where its binary is there already."""
        import triton

        def stages(_backend: Any = None, stages: Any = None, *_: Any) -> tuple[str, str] | None:
            if stages is None:  # Triton asks what the stages add to the key of its cache
                return "", ""
            stages["ttgir"] = _after(lambda module: seen.update(ttir=str(module)), stages["ttgir"])
            stages["llir"] = _after(lambda module: self._end_if_made(str(module), seen), stages["llir"])
            return None

        with triton.knobs.runtime.scope():
            triton.knobs.runtime.add_stages_inspection_hook = stages
            yield

    def _end_if_made(self, layout: str, seen: dict[str, str]) -> None:
        seen["key"] = content_hash(layout)
        if seen["key"] in self._binaries:
            raise _Made


def _after(look: Callable[[Any], None], stage: Callable[..., Any]) -> Callable[..., Any]:
    def run(module: Any, metadata: dict[str, Any]) -> Any:
        look(module)
        return stage(module, metadata)

    return run
