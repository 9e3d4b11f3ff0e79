"""Common parts of the kernels that Numba compiles for a CPU.

compiled.py   the compiler and its cache, tensors as arrays, exp and log, checks of calls, threads
vectors.py    vectors of 16 fp32 numbers as values, and products of queries with the rows of keys that they selected
attention.py  attention of a block of queries to lists of keys, and its gradients
"""

from kernels.numba_common.compiled import in_parts, parts_of, refusal

__all__ = ["in_parts", "parts_of", "refusal"]
