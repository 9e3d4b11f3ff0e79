"""The flash-attn package, in the version that is installed and made for the GPU; imported at the first call on one.

Its versions are packages of their own, which may stand side by side and agree in WORDS. 2 is flash-attn, the module
`flash_attn`; 3 the module `flash_attn_interface`, built from the folder hopper/ of its repository; 4 is flash-attn-4,
which installs `flash_attn.cute` and no `flash_attn` around it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.dispatch import constant_when_traced
from kernels.plugins import ABSENT, MAX_WIDTH, flash_refuses, look_up

FUNCTION = "flash_attn_varlen_func"
WORDS = (
    "q",
    "k",
    "v",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "max_seqlen_q",
    "max_seqlen_k",
    "softmax_scale",
    "causal",
    "window_size",
    "deterministic",
)
"""The keywords that every version is called with: their places differ."""
NOT_INSTALLED = (
    "flash-attn is not installed (pip install flash-attn, or flash-attn-4 for Hopper and newer GPUs)"
)


@dataclass(frozen=True)
class Version:
    """A version of flash-attn.

    module     where FUNCTION is
    majors     of the compute capabilities that it has a forward and a backward pass for
    no_window  its window_size of attention to all keys
    narrow     majors on which heads are at most NARROW wide, or MAX_WIDTH
    """

    number: int
    module: str
    majors: range
    no_window: tuple[int | None, int | None] = (-1, -1)
    narrow: range = range(0)

    def refuses(self, major: int, width: int) -> str | None:
        """The reason why it serves no heads of a width on GPUs of a major compute capability; None if it does."""
        if major not in self.majors:
            return f"flash-attn {self.number} has no kernels for compute capability {major}"
        if major in self.narrow and NARROW < width != MAX_WIDTH:
            return (
                f"flash-attn {self.number} needs a head width of {MAX_WIDTH} or at most {NARROW}, got {width}"
            )
        return None


NARROW = 128
# The fastest first: 3 is made for Hopper, 4 for Hopper and what came after it.
VERSIONS = (
    Version(3, "flash_attn_interface", range(8, 10)),
    Version(4, "flash_attn.cute", range(9, 13), no_window=(None, None), narrow=range(10, 12)),
    Version(2, "flash_attn", range(8, 13)),
)


def refuses(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> str | None:
    """The reason why flash-attn cannot take q, k [..., H, K] and v [..., Hkv, V]; None if it can."""
    return flash_refuses(q, k, v) or unusable(q.device, q.shape[-1])


@constant_when_traced
def unusable(device: torch.device, width: int = NARROW) -> str | None:
    """The reason why no version serves heads of a width on a device; None if one does."""
    if device.type != "cuda":
        return f"flash-attn needs a CUDA device, got {device.type}"
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device here"
    return _choose(device, width)[1]


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    causal: bool,
    window: int | None,
    scale: float,
) -> Tensor:
    """Attention over packed sequences: q [Mq, H, K], k, v [Mk, Hkv, K], cu int32 [N+1] -> [Mq, H, K].

    Gradients repeat to the last bit under torch.use_deterministic_algorithms alone.
    """
    sizes = None if window is None else (window - 1, 0)
    deterministic = torch.are_deterministic_algorithms_enabled()
    values = (q, k, v, cu_q, cu_k, max_q, max_k, scale, causal, sizes, deterministic)
    return _attend(**dict(zip(WORDS, values, strict=True)))


@torch._disable_dynamo  # version 4 compiles its kernels itself; torch.compiler.disable imports the compiler
def _attend(q: Tensor, window_size: tuple[int, int] | None, **words) -> Tensor:
    version, _ = _choose(q.device, q.shape[-1])
    function, _ = _function(version)
    out = function(q=q, window_size=version.no_window if window_size is None else window_size, **words)
    # Versions 3 and 4 return the logarithms of their sums too, 3 in some of its releases.
    return out[0] if isinstance(out, tuple) else out


def _choose(device: torch.device, width: int) -> tuple[Version | None, str | None]:
    """The version that serves heads of a width on a GPU; None and why there is none."""
    major, _ = torch.cuda.get_device_capability(device)
    reasons = {}
    for version in VERSIONS:
        _, why = _function(version)
        told = f"flash-attn {version.number}: {version.module} {why}"
        if why is None and (told := version.refuses(major, width)) is None:
            return version, None
        # 4 cannot be imported where a broken 2 lies around it: that is 2's own reason, which comes last.
        reasons[why or told] = told
    reasons.pop(ABSENT, None)
    return None, "; ".join(reasons.values()) or NOT_INSTALLED


def _function(version: Version) -> tuple[Callable | None, str | None]:
    """A version's function; None and why it cannot be called with WORDS."""
    function, why = look_up(version.module, FUNCTION)
    if why is not None:
        return None, why
    try:
        inspect.signature(function).bind(**dict.fromkeys(WORDS))
    except TypeError as error:
        return None, f"takes other arguments ({error}); install a newer version"
    return function, None
