"""Layers and decode states that several blocks share.

layers.py  norms, linear maps, the short convolution, decays and gates
rotary.py  options of rotary positions: frequencies for longer texts, the part of a head that turns
caches.py  caches that grow with the tokens, and decode states as trees of them
"""

from kernels.autograd import joins, l2norm
from zoo.modules.caches import GroupedKVCache, KVCache, RowCache, by_sequence, positions
from zoo.modules.layers import (
    INIT_STD,
    NORM_EPS,
    ForgetGate,
    Gate,
    LogDecay,
    OutputProjection,
    RMSNorm,
    ShortConvolution,
    are_plain,
    fp32_linear,
    fp32_linears,
    joined,
    output_std,
    project,
)

__all__ = [
    "INIT_STD",
    "NORM_EPS",
    "ForgetGate",
    "Gate",
    "GroupedKVCache",
    "KVCache",
    "LogDecay",
    "OutputProjection",
    "RMSNorm",
    "RowCache",
    "ShortConvolution",
    "are_plain",
    "by_sequence",
    "fp32_linear",
    "fp32_linears",
    "joined",
    "joins",
    "l2norm",
    "output_std",
    "positions",
    "project",
]
