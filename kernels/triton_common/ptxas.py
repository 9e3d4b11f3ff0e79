"""The choice of NVIDIA's assembler (ptxas) on Hopper GPUs: one that computes matrix descriptors in order.

ptxas 12.8, which Triton 3.6 and 3.7 bring for GPUs before Blackwell, moves the addition that makes a wgmma descriptor
out of a loop and before the instruction that loads what is added to: seen in the machine code of the delta rule's
kernels in some of their launch configurations, of which one H100 read memory out of range and returned wrong numbers
without an error. ptxas 12.9 and 13.1, theirs for Blackwell, keep the order on the same input, and compile for Hopper as
well; Triton 3.8 and 3.9 have no older one.
"""

from __future__ import annotations

import functools
import os

import torch

SOUND = (12, 9)
HOPPER = 9
_VARIABLE = "TRITON_PTXAS_PATH"


@functools.cache
def choose_ptxas() -> None:
    """Set TRITON_PTXAS_PATH to Triton's later ptxas where this process has a Hopper GPU and the variable is not set.

    Has to run before the first kernel is compiled. Kernels of other libraries in the process are compiled by it, too.
    """
    if _VARIABLE in os.environ or not torch.cuda.is_available():
        return
    if torch.cuda.get_device_capability()[0] == HOPPER:
        take_sound_ptxas()


def take_sound_ptxas() -> None:
    """Set TRITON_PTXAS_PATH to Triton's later ptxas, if its usual one is older than SOUND."""
    from triton import knobs

    usual, later = knobs.nvidia.ptxas, knobs.nvidia.ptxas_blackwell
    if _version(usual.version) < SOUND <= _version(later.version):
        os.environ[_VARIABLE] = later.path


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
