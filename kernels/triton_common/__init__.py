"""Common parts of the Triton kernels: which calls they serve, their tiles and layout, their launches and gradients."""

from kernels.triton_common.serving import interpreted, lazily, refusal

__all__ = ["interpreted", "lazily", "refusal"]
