"""`mlp`: the plain feed-forward network of two matrices."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from zoo.context import Context
from zoo.interfaces import Aux, Channel, Dims
from zoo.modules import OutputProjection
from zoo.options import at_least, one_of
from zoo.registry import register_channel

ACTIVATIONS = ("gelu", "relu2")


@dataclass
class MLPConfig:
    """Options of the two-matrix feed-forward network.

    activation: gelu, u·Φ(u) with the exact normal distribution function Φ, or relu2, max(u, 0)²; hidden: inner width,
    None for 4·D, which has as many parameters as SwiGLU with 8/3·D.
    """

    activation: str = "gelu"
    hidden: int | None = None


@register_channel(
    "mlp",
    config=MLPConfig,
    title="Two-matrix MLP",
    family="dense",
    source="Vaswani et al. 2017 (arXiv:1706.03762), section 3.3; GELU: Hendrycks and Gimpel 2016 (arXiv:1606.08415); "
    "squared ReLU: So et al. 2021, Primer (arXiv:2109.08668)",
)
class MLP(Channel):
    """y = act(x·W_up)·W_down, without biases; x [..., D]. act(u) = u·Φ(u) or max(u, 0)², element by element."""

    def __init__(self, config: MLPConfig, dims: Dims) -> None:
        super().__init__()
        one_of(config.activation, ACTIVATIONS, "mlp.activation")
        hidden = 4 * dims.d_model if config.hidden is None else config.hidden
        at_least(hidden, 1, "mlp.hidden")
        self.activation = config.activation
        self.up = nn.Linear(dims.d_model, hidden, bias=False)
        self.down = OutputProjection(hidden, dims.d_model, bias=False)

    def forward(self, x: Tensor, ctx: Context | None = None) -> tuple[Tensor, Aux]:
        """x [..., D] -> (y [..., D], no losses)."""
        u = self.up(x)
        return self.down(F.gelu(u) if self.activation == "gelu" else F.relu(u).square()), {}
