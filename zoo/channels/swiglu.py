"""`swiglu`: the gated feed-forward network."""

from dataclasses import dataclass

from torch import Tensor, nn

import kernels
from zoo.context import Context
from zoo.interfaces import Aux, Channel, Dims
from zoo.modules import OutputProjection, project
from zoo.options import at_least
from zoo.registry import register_channel


@dataclass
class SwiGLUConfig:
    """hidden: inner width; None for 8/3·D rounded up to a multiple of 8."""

    hidden: int | None = None


@register_channel(
    "swiglu", config=SwiGLUConfig, title="SwiGLU", family="dense", source="Shazeer 2020 (arXiv:2002.05202)"
)
class SwiGLU(Channel):
    """y = (SiLU(x·W_gate) ⊙ (x·W_up))·W_down, without biases; x [..., D]."""

    def __init__(self, config: SwiGLUConfig, dims: Dims) -> None:
        super().__init__()
        hidden = default_hidden(dims.d_model) if config.hidden is None else config.hidden
        at_least(hidden, 1, "swiglu.hidden")
        self.gate = nn.Linear(dims.d_model, hidden, bias=False)
        self.up = nn.Linear(dims.d_model, hidden, bias=False)
        self.down = OutputProjection(hidden, dims.d_model, bias=False)
        self.backend = dims.body_backend

    def forward(self, x: Tensor, ctx: Context | None = None) -> tuple[Tensor, Aux]:
        """x [..., D] -> (y [..., D], no losses)."""
        gate, up = project(x, self.gate, self.up)
        return self.down(kernels.swiglu(gate, up, backend=self.backend)), {}


def default_hidden(d_model: int) -> int:
    """8/3·D rounded up to a multiple of 8."""
    return -(-d_model // 3) * 8
