"""Common parts of kernels that Numba compiles for a CPU: the calls they serve, the compiler, numbers, rows, threads."""

from kernels.numba_common.compiled import in_parts, parts_of, refusal

__all__ = ["in_parts", "parts_of", "refusal"]
