"""The GPUs that kernels can be compiled for: what limits how many programs one multiprocessor holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU's sizes.

    name                as its driver gives it
    capability          major and minor number
    multiprocessors     how many it has
    program_shared      bytes of shared memory that one program can have
    shared              bytes of shared memory of a multiprocessor; every program takes 1 KiB more than it asks for
    registers, warps    of a multiprocessor, 32 bits each; that it can hold at a time
    clock               Hz that it keeps up under load, as the model takes it
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    program_shared: int
    shared: int
    registers: int = 65_536
    warps: int = 64
    clock: float = 1.755e9

    @property
    def sm(self) -> int:
        """The compiler's number of the architecture, 90 for 9.0."""
        return 10 * self.capability[0] + self.capability[1]


# CUDA C++ programming guide, table "technical specifications per compute capability"; data sheets for the SXM forms'
# multiprocessors. Clocks are below the highest boost: 1.98 GHz of H100 and H200, 1.41 GHz of A100.
GPUS = {
    "H200": Gpu("NVIDIA H200", (9, 0), 132, 232_448, 233_472),
    "H100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 232_448, 233_472),
    "A100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 166_912, 167_936, clock=1.275e9),
}


def programs_resident(gpu: Gpu, registers: int, shared: int, warps: int) -> int:
    """Return the number of a kernel's programs that one multiprocessor holds at a time; 0 where not even one fits.

    registers: of a thread, given out in units of 256 a warp; shared: bytes a program; warps: of a program.
    """
    of_a_warp = -(-registers * 32 // 256) * 256
    by_shared = gpu.shared // (shared + 1024) if shared <= gpu.program_shared else 0
    return min(gpu.registers // (of_a_warp * warps), by_shared, gpu.warps // warps, 32)
