"""How Triton kernels are reached and launched: which calls they serve, on which layout, with which tiles."""

from kernels.triton_common.serving import interpreted, lazily, on_cuda, refusal

__all__ = ["interpreted", "lazily", "on_cuda", "refusal"]
