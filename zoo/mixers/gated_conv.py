"""`C`: gated short convolution, the local mixer of LFM2."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zoo.context import Context
from zoo.interfaces import Aux, Dims, Mixer
from zoo.modules import OutputProjection, ShortConvolution
from zoo.options import at_least
from zoo.registry import register_mixer


@dataclass
class GatedConvConfig:
    """kernel_size: k, how many tokens, the current one included, an output depends on."""

    kernel_size: int = 3


@register_mixer(
    "gated_conv",
    letter="C",
    config=GatedConvConfig,
    title="Gated short convolution",
    family="convolution",
    color="#56B4E9",
    mask="convolution",
    source="Liquid AI 2025, LFM2 technical report (arXiv:2511.23404)",
    sketch="""
    x
    B | h | C
    B ⊙ h
    convolution
    ⊙ C
    y
    """,
)
class GatedConv(Mixer):
    """A depthwise causal convolution between two gates that are linear in the input.

        [B, C, h] = x·W_in                                     [B, T, 3D] in three parts, without bias
        z_t = Σ_{i=0…k−1} w_i ⊙ (B ⊙ h)_{t−(k−1)+i}            [B, T, D], w [D, k], no bias, no activation
        y = (C ⊙ z)·W_out                                      [B, T, D]

    Decode state: the last k−1 values of B ⊙ h, [B, D, k−1], whatever T is.
    """

    context_parallel = True

    def __init__(self, config: GatedConvConfig, dims: Dims) -> None:
        super().__init__()
        at_least(config.kernel_size, 1, "gated_conv.kernel_size")
        self.in_proj = nn.Linear(dims.d_model, 3 * dims.d_model, bias=False)
        self.conv = ShortConvolution(dims.d_model, config.kernel_size, backend=dims.backend)
        self.out_proj = OutputProjection(dims.d_model, dims.d_model, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], no losses)."""
        gate_in, gate_out, h = self.in_proj(x).chunk(3, dim=-1)
        return self.out_proj(gate_out * self.conv(gate_in * h, ctx)), {}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """The values of B ⊙ h before the first token: zeros [B, D, k−1]."""
        return self.conv.init_state(batch_size, device=device, dtype=dtype)

    def extend(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The next tokens: x [B, T, D] -> (y [B, T, D], the last k−1 values of B ⊙ h)."""
        gate_in, gate_out, h = self.in_proj(x).chunk(3, dim=-1)
        z, state = self.conv.extend(gate_in * h, state)
        return self.out_proj(gate_out * z), state
