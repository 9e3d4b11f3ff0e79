"""Layers and other parts that several blocks share."""

from zoo.modules.caches import GroupedKVCache, KVCache, RowCache
from zoo.modules.convolution import ShortConvolution
from zoo.modules.decay import LogDecay
from zoo.modules.gate import ForgetGate, Gate
from zoo.modules.linear import INIT_STD, OutputProjection, fp32_linear, output_std
from zoo.modules.norm import NORM_EPS, RMSNorm, l2norm
from zoo.modules.parameter_groups import ParameterGroup
from zoo.modules.states import by_sequence, positions
from zoo.modules.step_buffer import StepBuffer

__all__ = [
    "INIT_STD",
    "NORM_EPS",
    "ForgetGate",
    "Gate",
    "GroupedKVCache",
    "KVCache",
    "LogDecay",
    "OutputProjection",
    "ParameterGroup",
    "RMSNorm",
    "RowCache",
    "ShortConvolution",
    "StepBuffer",
    "by_sequence",
    "fp32_linear",
    "l2norm",
    "output_std",
    "positions",
]
