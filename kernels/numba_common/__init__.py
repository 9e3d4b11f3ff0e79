"""Common parts of kernels that Numba compiles for a CPU: the calls they serve, the compiler, numbers, rows, threads."""

from kernels.numba_common.serving import refusal
from kernels.numba_common.threads import in_parts, parts_of

__all__ = ["in_parts", "parts_of", "refusal"]
