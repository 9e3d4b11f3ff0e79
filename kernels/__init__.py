"""Operations on tensors, whose backends agree. Knows nothing of modules, configurations or training.

ops/            one file or folder an operation: its definition, and its forms in PyTorch, Triton and Numba
dispatch.py     from a call to the backend that serves it
autograd.py     costs, derivatives that are refused, a gated output
packing.py      packed sequences and their chunks;  indices.py: lists of chosen keys
noise.py        noise from a seed, a step and a place;  rotary.py: rotary positions
streams.py      sizes of residual streams
plugins/        attention of other packages: flash-attn, varlen
triton_common/  what Triton forms share: tiles, tuning, operators for compilers
numba_common/   what Numba forms share
"""

from kernels.noise import gumbel_noise
from kernels.ops.attention import attention
from kernels.ops.cayley import cayley
from kernels.ops.delta_rule import delta_rule
from kernels.ops.gates import delta_gates, gated_norm, swiglu
from kernels.ops.grouped_linear import grouped_linear
from kernels.ops.hyper_coefficients import hyper_coefficients
from kernels.ops.hyper_post import hyper_post
from kernels.ops.hyper_pre import hyper_pre
from kernels.ops.indexed_attention import indexed_attention
from kernels.ops.indexer_kl import indexer_kl
from kernels.ops.lightning_topk import AdaptiveK, lightning_topk
from kernels.ops.linear_cross_entropy import linear_cross_entropy
from kernels.ops.memory_mixture import memory_mixture
from kernels.ops.mesa import mesa, mesa_residuals
from kernels.ops.nsa_attention import nsa_attention, nsa_blocks
from kernels.ops.path_attention import path_attention
from kernels.ops.path_extend import path_extend
from kernels.ops.path_step import path_step
from kernels.ops.short_conv import short_conv, short_conv_heads
from kernels.ops.sinkhorn import sinkhorn
from kernels.ops.sparse_attention import sparse_attention
from kernels.ops.sparse_step import sparse_step
from kernels.ops.timeline_attention import timeline_attention
from kernels.rotary import RopeScaling, rope, rope_each

__all__ = [
    "AdaptiveK",
    "RopeScaling",
    "attention",
    "cayley",
    "delta_gates",
    "delta_rule",
    "gated_norm",
    "grouped_linear",
    "gumbel_noise",
    "hyper_coefficients",
    "hyper_post",
    "hyper_pre",
    "indexed_attention",
    "indexer_kl",
    "lightning_topk",
    "linear_cross_entropy",
    "memory_mixture",
    "mesa",
    "mesa_residuals",
    "nsa_attention",
    "nsa_blocks",
    "path_attention",
    "path_extend",
    "path_step",
    "rope",
    "rope_each",
    "short_conv",
    "short_conv_heads",
    "sinkhorn",
    "sparse_attention",
    "sparse_step",
    "swiglu",
    "timeline_attention",
]
