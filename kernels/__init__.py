"""Maths on tensors: operations whose backends agree. Knows nothing of modules, configs or training."""

from kernels.noise import gumbel_noise
from kernels.ops.attention import attention
from kernels.ops.short_conv import short_conv
from kernels.ops.timeline_attention import timeline_attention
from kernels.rotary import rope

__all__ = ["attention", "gumbel_noise", "rope", "short_conv", "timeline_attention"]
