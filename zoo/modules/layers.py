"""Layers that several blocks are made of: norms, linear maps, the short convolution, the log decay, gates.

Norms, gates and decays are computed in at least fp32, under autocast too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import kernels
from kernels.autograd import joins, linears, rms_norm
from zoo.context import Context

NORM_EPS = 1e-6
"""ε of norms that a model does not set by `norm_eps`: L2 norms, of latents, and of what residual coefficients read."""
INIT_STD = 0.02
"""Of weights, but those of output projections (`output_std`)."""
A_RANGE, DT_RANGE = (1.0, 16.0), (1e-3, 0.1)
"""Where LogDecay starts: exp(A_log), and softplus(dt_bias)."""


class RMSNorm(nn.Module):
    """y = x · rsqrt(mean(x²) + ε) ⊙ gain over the last axis, computed in at least fp32, returned in x's dtype.

    Source: Zhang and Sennrich 2019 (arXiv:1910.07467).
    """

    def __init__(self, width: int, eps: float = NORM_EPS) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> y [..., width]."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return rms_norm(x.to(wide), self.weight.to(wide), self.eps).to(x.dtype)

    def of_heads(self, o: Tensor, logits: Tensor | None, backend: str) -> Tensor:
        """o [B, T, H, width], each head's norm times σ(logits) [B, T, H·width] where there are any -> [B, T, H·width].

        backend: of `kernels.gated_norm`.
        """
        logits = None if logits is None else logits.unflatten(-1, o.shape[-2:])
        return kernels.gated_norm(o, self.weight, logits, eps=self.eps, backend=backend).flatten(-2)


class OutputProjection(nn.Linear):
    """A projection back into the residual stream; its own class because it starts smaller (std 0.02/√(2N))."""


def project(x: Tensor, *maps: nn.Linear) -> list[Tensor]:
    """Several linear maps of x [..., D], [..., N] each; in training with fewer casts and passes than one by one.

    Of a `Gate` its logits; gates stand after the other maps.
    """
    plain, gates = ([m for m in maps if isinstance(m, Gate) is is_gate] for is_gate in (False, True))
    usual = are_plain(plain)
    if usual and joins(x):
        plain, gates = maps, ()
    weights, biases = [m.weight for m in plain], [m.bias for m in plain]
    outputs = linears(x, weights, biases) if usual else [linear(x) for linear in plain]
    return [*outputs, *(gate.logits(x) for gate in gates)]


def joined(x: Tensor, *maps: nn.Linear) -> Tensor:
    """Linear maps without biases of x [..., D] side by side, [..., ΣN]: one product where `project` makes one."""
    if are_plain(maps) and joins(x):
        return F.linear(x, torch.cat([m.weight for m in maps]))
    return torch.cat(project(x, *maps), -1)


def are_plain(maps: Sequence[nn.Linear]) -> bool:
    """Return whether gradients are asked for and all maps are plain; who changes or watches one has it called."""
    return torch.is_grad_enabled() and all(type(m) is nn.Linear and not m._forward_hooks for m in maps)


def output_std(depth: int) -> float:
    """The standard deviation with which output projections of a model of N layers start: 0.02/√(2N)."""
    return INIT_STD / math.sqrt(2 * depth)


def fp32_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x·Wᵀ [..., N] of x [..., D] and W [N, D] in at least fp32, under autocast too.

    For routing logits, gates and decays.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    # The meta device has no autocast to switch off.
    if x.is_meta or not torch.is_autocast_enabled(x.device.type):
        return F.linear(x.to(wide), weight.to(wide))
    with torch.autocast(x.device.type, enabled=False):
        return F.linear(x.to(wide), weight.to(wide))


def fp32_linears(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """Several `fp32_linear` of x [..., D], [..., N] each; as one product where `project` makes one."""
    if joins(x):
        return list(fp32_linear(x, torch.cat(weights)).split([len(weight) for weight in weights], -1))
    return [fp32_linear(x, weight) for weight in weights]


class ShortConvolution(nn.Module):
    """Depthwise causal convolution without bias, then an activation.

        y_t = act( Σ_{i=0…k−1} weight[:, i] ⊙ x_{t−(k−1)+i} ),     x = 0 before a sequence's first token

    width: number of channels; kernel_size: k; activation: None or "silu"; backend: kernels' backend.
    The weight [width, k] starts uniform in ±1/√k, as PyTorch's own depthwise convolution does.
    Decode state: the last k−1 inputs, [B, width, k−1], oldest first.
    """

    def __init__(
        self, width: int, kernel_size: int, activation: str | None = None, *, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.activation = activation
        self.backend = backend
        self.weight = nn.Parameter(torch.empty(width, kernel_size))
        self.init_weights(None)

    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw the weight from the generator, uniform in ±1/√k."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """Whole sequences: x [B, T, width] -> y [B, T, width], in x's dtype."""
        before = ctx.inputs_before(x, self.weight.shape[1] - 1)
        options = {"activation": self.activation, "cu_seqlens": ctx.cu_seqlens, "backend": self.backend}
        y, _ = kernels.short_conv(x, self.weight, state=before, **options)
        return y

    def heads(self, x: Tensor, ctx: Context, heads: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Whole sequences of heads: x [B, T, width] -> q, k, v [B, T, H, K], q and k of length 1; activation: "silu".

        heads: as of `kernels.short_conv_heads`.
        """
        before = ctx.inputs_before(x, self.weight.shape[1] - 1)
        options = {"cu_seqlens": ctx.cu_seqlens, "backend": self.backend}
        return kernels.short_conv_heads(x, self.weight, heads=heads, state=before, **options)

    def init_state(self, batch_size: int, device: Any = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """The inputs before the first token: zeros [B, width, k−1]."""
        width, kernel_size = self.weight.shape
        return torch.zeros(batch_size, width, kernel_size - 1, device=device, dtype=dtype)

    def extend(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The next tokens: x [B, T, width] -> (y [B, T, width], the state after them)."""
        return kernels.short_conv(
            x, self.weight, activation=self.activation, state=state, backend=self.backend
        )


class LogDecay(nn.Module):
    """g = −exp(A_log)·softplus(x + dt_bias) ≤ 0 in nats and β = top·σ(strength), in at least fp32.

    A_log has the shape `rates`, which broadcasts to `shape`, and starts as log U(1, 16); dt_bias has `shape` and
    starts as softplus⁻¹ of dt, log-uniform on [1e-3, 0.1]: at x = 0 a new module has −g from 0.001 to 1.6.
    """

    def __init__(self, rates: tuple[int, ...], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.empty(rates))
        self.dt_bias = nn.Parameter(torch.empty(shape))
        self.init_weights(None)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw A_log and dt_bias from the generator, as the class describes."""
        self.A_log.uniform_(*A_RANGE, generator=generator).log_()
        self.dt_bias.uniform_(*(math.log(dt) for dt in DT_RANGE), generator=generator).exp_().expm1_().log_()

    def forward(self, x: Tensor, strength: Tensor, top: float, backend: str) -> tuple[Tensor, Tensor]:
        """x [B, T, *shape], strength [B, T, ...] -> g [B, T, *shape], β [B, T, ...], by `kernels.delta_gates`."""
        return kernels.delta_gates(x, self.A_log, self.dt_bias, strength, top=top, backend=backend)


class Gate(nn.Linear):
    """σ(x·W + b) with b = 0.5 and W Xavier-uniform of gain 0.1, so that a new gate is nearly constant."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out, bias=True)

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw W from the generator and set b."""
        nn.init.xavier_uniform_(self.weight, gain=0.1, generator=generator)
        nn.init.constant_(self.bias, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> numbers in (0, 1), [..., out]."""
        return torch.sigmoid(self.logits(x))

    def logits(self, x: Tensor) -> Tensor:
        """x·W + b [..., N] of x [..., D], for an operation that takes the sigmoid itself."""
        return super().forward(x)


class ForgetGate(nn.Linear):
    """log σ(x·W + b) ≤ 0, the logarithm of what a token leaves of what was before, in at least fp32.

    b is `start` before training, the forget bias of LSTMs: with 0 a new layer halves its past at every token, with 4
    it keeps 98 % of it.
    """

    def __init__(self, width: int, out: int, start: float) -> None:
        super().__init__(width, out, bias=True)
        self.start = start

    def init_weights(self, generator: torch.Generator) -> None:
        """Set b; W is a projection's, drawn with the others."""
        nn.init.constant_(self.bias, self.start)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> logarithms [..., out]."""
        return F.logsigmoid(fp32_linear(x, self.weight) + self.bias)


# Tensors that follow from parameters, computed once for many steps of decoding.


class Derived:
    """The result of a computation on parameters, kept until one of them changes.

    A change is another storage, dtype or version of a tensor, or a step of any optimiser of torch.optim (fused ones
    leave versions as they are): training and loading a checkpoint are seen, writing through `.data` is not. For use
    under torch.no_grad() only.
    """

    optimizer_steps: ClassVar[int] = 0
    """Of all optimisers in this process."""

    def __init__(self) -> None:
        self._key: Any = None
        self._value: Any = None
        self._storages: list = []

    def __call__(self, compute: Callable[[], Any], *sources: Tensor) -> Any:
        """compute(), which depends on the sources and on nothing else that changes."""
        if torch.compiler.is_compiling():  # a graph has no places in memory to compare
            return compute()
        key = _key(sources, self.optimizer_steps)
        if key is None or key != self._key:
            self._value, self._key = compute(), key
            # Held, lest a new tensor take a replaced one's place in memory and pass for it.
            self._storages = [x.untyped_storage() for x in sources]
        return self._value


def _key(sources: tuple[Tensor, ...], optimizer_steps: int) -> list | None:
    """Place in memory, dtype and version of every tensor, and the steps; None where no versions are counted."""
    try:
        return [optimizer_steps, *((x.data_ptr(), x.dtype, x._version) for x in sources)]
    except RuntimeError:  # tensors made in inference mode
        return None


def _count_step(*_: Any) -> None:
    Derived.optimizer_steps += 1


register_optimizer_step_post_hook(_count_step)
