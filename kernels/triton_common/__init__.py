"""Common parts of the Triton kernels: which calls they serve, on which layout, with which tiles and device functions."""

from kernels.triton_common.serving import interpreted, lazily, on_cuda, refusal

__all__ = ["interpreted", "lazily", "on_cuda", "refusal"]
