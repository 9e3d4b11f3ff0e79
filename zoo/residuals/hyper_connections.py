"""Residual schemes with several streams (hyper-connections): what `hc`, `mhc`, `ohc` and `shc` share.

    x̂ = RMSNorm(vec x) ∈ R^{nD}, without gain                          x [B, T, n, D]: n streams a token
    H_pre = σ(mα₀·x̂φ_pre + b_pre)  [n],   H_post = 2σ(mα₁·x̂φ_post + b_post)  [n]
    H_res = mixing(mα₂·x̂φ_res + b_res)  [n, n]                          `mixing` is each scheme's own
    y = H_pre·x,   z = F(norm(y)),   x ← H_res·x + H_postᵀ·z

Coefficients are every token's own and computed in at least fp32. m rises from `warmup_factor` to 1 during training.
Adam moves α and φ together, so that α·φ grows with the square of the learning rate: a rate above the model's own lets
it run away.
Source: hyper-connections (arXiv:2409.19606); mHC (arXiv:2512.24880), equations 5 and 7; the OrthGSA document.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from kernels.dispatch import autocasts
from kernels.ops.hyper_coefficients import capped
from zoo.errors import UserError
from zoo.interfaces import Dims, ParameterGroup, Residual, StepBuffer, Streams
from zoo.modules import NORM_EPS, RMSNorm
from zoo.modules.layers import Derived
from zoo.options import added, at_least, one_of, positive

# One token on a CPU, for decoding, which asks for coefficients twice a layer and token. They are a few dozen numbers,
# and an operation on a tensor takes longer to start than Python takes for all of them, so they are Python's numbers
# here. What is as wide as the model stays in tensors.

MOST_SEQUENCES = 8
"""The largest batch whose coefficients are computed one sequence after another."""


class StepWeights(NamedTuple):
    """mα·φ [rows, nD] and b [rows], the rows those of H_pre, H_post and H_res."""

    weight: Tensor
    bias: list[float]

    @staticmethod
    def of(phi: Tensor, scale: Tensor, bias: Tensor, n: int) -> StepWeights:
        """From φ [2n + m, nD], mα [3] and b [2n + m]."""
        rows = torch.cat([s.expand(k) for s, k in zip(scale, (n, n, len(phi) - 2 * n), strict=True)])
        return StepWeights(rows[:, None] * phi, bias.tolist())

    def logits(self, x: Tensor, eps: float) -> list[list[float]]:
        """mα·x̂φ + b of the streams x [B, 1, n, D] of every sequence: B lists of as many numbers as rows."""
        flat = x.flatten(1)
        products, norms = F.linear(flat, self.weight), torch.linalg.vector_norm(flat, dim=-1)
        inverse = [1 / math.sqrt(norm * norm / flat.shape[1] + eps) for norm in norms.tolist()]
        return [
            [r * y + b for y, b in zip(row, self.bias, strict=True)]
            for r, row in zip(inverse, products.tolist(), strict=True)
        ]


def takes_step(x: Tensor, backend: str) -> bool:
    """Return whether the streams x [B, T, n, D] are one token of a few sequences that these forms serve."""
    return (
        x.shape[1] == 1
        and len(x) <= MOST_SEQUENCES
        and not torch.is_grad_enabled()
        and x.device.type == "cpu"
        and backend in ("auto", "torch")
        and x.dtype in (torch.float32, torch.float64)
        and not autocasts(x)
        and not torch.compiler.is_compiling()  # numbers are of Python, and a graph has none
    )


def sigmoids(logits: list[float]) -> list[float]:
    """σ of every number; through tanh, which does not overflow."""
    return [0.5 + 0.5 * math.tanh(0.5 * y) for y in logits]


def read(x: Tensor, h_pre: Tensor) -> Tensor:
    """y = H_pre·x: streams [B, 1, n, D] and h_pre [B, 1, n] -> [B, 1, D]."""
    return torch.bmm(h_pre, x[:, 0])


def write(x: Tensor, z: Tensor, h_res: Tensor, h_post: Tensor) -> Tensor:
    """H_res·x + H_postᵀ·z: streams [B, 1, n, D] and z [B, 1, D] -> [B, 1, n, D]."""
    mixed = torch.bmm(h_res[:, 0], x[:, 0])
    return torch.addcmul(mixed, h_post.mT, z).unsqueeze(1)


# The schemes' base.

CLIPPING = ("together", "each")


@dataclass
class HyperConfig:
    """Options of every scheme with several streams.

    n_streams: n, residual streams of a token; init: "identity" (the mean stream starts as the plain residual, and the
    streams differ) or "seed" (the literal values of the OrthGSA document, for ablations: all streams stay equal);
    readout: how the head reads the streams, "mean" or "learned" weights; expansion: how the embedding e becomes
    streams, "copy" or "learned", x_i = g_i ⊙ e with gains g [n, D] that start at 1; alpha: initial value of the learned
    factors α, by which the coefficients depend on x; warmup_factor: what α is multiplied by in the first warmup_hold
    steps; warmup_hold: steps in which α is multiplied by warmup_factor; warmup_ramp: steps after them in which that
    factor rises linearly to 1; warmup_share: warmup_hold and warmup_ramp are shortened so that they take at most this
    share of the training (null: never); lr_scale: learning rate of the coefficients, as a multiple of the model's;
    clip: how gradients of coefficients are clipped, "together" (the whole model's to one norm) or "each" (every
    sub-block's to its own).
    """

    n_streams: int = 4
    init: str = "identity"
    readout: str = "mean"
    warmup_factor: float = 0.1
    warmup_hold: int = 1000
    warmup_ramp: int = 5000
    warmup_share: float | None = added(1 / 6, before=None)
    lr_scale: float = added(1.0, before=10.0)
    alpha: float = added(0.01, before=0.01)
    clip: str = added("together", before="together")
    expansion: str = added("copy", before="copy")

    @property
    def parameter_group(self) -> ParameterGroup:
        """The optimiser's settings for all that decides coefficients."""
        return ParameterGroup("coefficients", self.lr_scale, each=self.clip == "each")


class Coefficients(NamedTuple):
    """h_pre, h_post [B, T, n] and h_res [B, T, n, n], in at least fp32."""

    pre: Tensor
    post: Tensor
    res: Tensor


class HyperStreams(Streams):
    """The embedding goes into all n streams, as it is or times learned gains; the head reads their mean, or a learned
    weighted sum."""

    def __init__(self, config: HyperConfig, dims: Dims) -> None:
        super().__init__(config, dims)
        check(config)
        self.parameter_group = config.parameter_group
        self.n = config.n_streams
        learned = config.expansion == "learned"
        self.expansion = nn.Parameter(torch.ones(self.n, dims.d_model)) if learned else None
        self.readout = (
            nn.Parameter(torch.full((self.n,), 1 / self.n)) if config.readout == "learned" else None
        )

    def expand(self, x: Tensor) -> Tensor:
        """Embedding [B, T, D] -> n copies [B, T, n, D], times the gains if there are any."""
        if self.expansion is not None:
            return (x.unsqueeze(-2) * self.expansion).to(x.dtype)
        # A copy: products with a view whose streams are one and the same memory are slow.
        return x.unsqueeze(-2).repeat(1, 1, self.n, 1)

    def collapse(self, x: Tensor) -> Tensor:
        """Streams [B, T, n, D] -> their mean or learned weighted sum [B, T, D]."""
        return x.mean(-2) if self.readout is None else (self.readout[:, None] * x).sum(-2)

    def inside(self) -> int:
        """The number n of streams, vectors of width D that a token has inside a layer."""
        return self.n


class Clock(StepBuffer):
    """factor: m of the warm-up, fp32 [], by which α is multiplied: computed where the step is set, not at each use."""

    def __init__(self, config: HyperConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("factor", torch.tensor(warmup(0, 0, config)), persistent=False)
        self.register_load_state_dict_post_hook(lambda loaded, _: loaded.restore())

    def set(self, step: int, total: int) -> None:
        """Set the step and the factor that it has."""
        super().set(step, total)
        self.factor.fill_(warmup(step, total, self.config))

    def restore(self) -> None:
        """Compute the factor, which is not saved."""
        self.set(int(self.step), int(self.total))


def warmup(step: int, total: int, config: HyperConfig) -> float:
    """m: warmup_factor for warmup_hold steps, then linearly to 1 over warmup_ramp steps.

    Both are shortened alike where they would take more than warmup_share of a training whose length is known.
    """
    hold, ramp = config.warmup_hold, max(1, config.warmup_ramp)
    # In fp32, and with no tensors: it is asked for where those have no storage.
    done, length = np.float32(step), np.float32(total)
    if config.warmup_share is not None and total > 0:
        done = done / min(config.warmup_share * length / (hold + ramp), np.float32(1))
    risen = min(max((done - hold) / ramp, np.float32(0)), np.float32(1))
    return float(config.warmup_factor + (1 - config.warmup_factor) * risen)


class HyperResidual(Residual):
    """A residual scheme with n streams around one sub-block F; calling it computes the coefficients of every token.

        x_i ← Σ_j H_res_ij·x_j + H_post_i·F(norm(Σ_j H_pre_j·x_j))

    The call takes streams x [B, T, n, D] and returns `Coefficients`: H_pre [B, T, n] in (0, 1), H_post [B, T, n] in
    (0, 2), and H_res [B, T, n, n], of the kind of matrices that the scheme's `mixing` makes.
    """

    streams = HyperStreams
    decays = ("phi_pre", "phi_post", "phi_res")

    def __init__(self, config: HyperConfig, dims: Dims, n_res: int) -> None:
        super().__init__(config, dims)
        check(config)
        self.config = config
        self.parameter_group = config.parameter_group
        n, width = config.n_streams, config.n_streams * dims.d_model
        self.phi_pre = nn.Parameter(torch.zeros(n, width))
        self.phi_post = nn.Parameter(torch.zeros(n, width))
        self.phi_res = nn.Parameter(torch.zeros(n_res, width)) if n_res else None
        b_pre, b_post = initial_biases(n, config.init)
        self.b_pre, self.b_post = nn.Parameter(b_pre), nn.Parameter(b_post)
        self.alpha = nn.Parameter(torch.full((3,), float(config.alpha)))
        self.clock = Clock(config)
        self._weights = Derived()

    @abstractmethod
    def mixing(self, raw: Tensor) -> Tensor:
        """H_res [..., n, n] from mα₂·x̂φ_res + b_res [..., n_res]."""

    def step_mixing(self, raw: list[float]) -> list[float]:
        """`mixing` of one token: n_res numbers -> H_res row by row, n² numbers."""
        return self.mixing(torch.tensor(raw, dtype=torch.float64)).flatten().tolist()

    def bias(self) -> Tensor:
        """b_pre, b_post and b_res [2n + n_res]; no b_res here."""
        mixing = [] if self.phi_res is None else [self.alpha.new_zeros(len(self.phi_res))]
        return torch.cat([self.b_pre, self.b_post, *mixing])

    def forward(self, x: Tensor) -> Coefficients:
        """Streams [B, T, n, D] -> the coefficients of every token."""
        return self._coefficients(x)[0]

    def step(self, x: Tensor) -> Coefficients:
        """Streams [B, 1, n, D] of one token -> its coefficients, computed as numbers."""
        n, batch = self.config.n_streams, len(x)
        sources = (*self._parameters.values(), self.clock.step, self.clock.total)
        weights = self._weights(lambda: StepWeights.of(*self._affine(), n), *sources)
        rows = []
        for logits in weights.logits(x, NORM_EPS):
            gates = sigmoids(logits[: 2 * n])
            rows.append([*gates[:n], *(2 * gate for gate in gates[n:]), *self.step_mixing(logits[2 * n :])])
        pre, post, res = torch.tensor(rows, dtype=x.dtype).split((n, n, n * n), 1)
        return Coefficients(pre.unsqueeze(1), post.unsqueeze(1), res.view(batch, 1, n, n))

    def _coefficients(self, x: Tensor) -> tuple[Coefficients, Tensor]:
        """The coefficients, and the streams for their next reader."""
        options = {"cap": self.cap(), "eps": NORM_EPS, "hand_on": True, "backend": self.dims.backend}
        scale = self.scale() if options["cap"] is None else HyperResidual.scale(self)
        pre, post, raw, x = kernels.hyper_coefficients(x, self.phi(), scale, self.bias(), **options)
        return Coefficients(pre, post, self.mixing(raw)), x

    def _affine(self) -> tuple[Tensor, Tensor, Tensor]:
        """φ [2n + n_res, nD], mα [3] and b [2n + n_res]."""
        return self.phi(), self.scale(), self.bias()

    def phi(self) -> Tensor:
        """φ [2n + n_res, nD]."""
        return torch.cat([phi for phi in (self.phi_pre, self.phi_post, self.phi_res) if phi is not None])

    def cap(self) -> tuple[float, float] | None:
        """The cap of `kernels.hyper_coefficients`; None where `scale` has the last word."""
        return None

    def scale(self) -> Tensor:
        """mα [3], of H_pre, H_post and H_res."""
        return self.clock.factor * self.alpha

    def pre(self, x: Tensor) -> tuple[Tensor, Coefficients]:
        """Streams [B, T, n, D] -> (y = H_pre·x [B, T, D], the coefficients)."""
        if takes_step(x, self.dims.backend):
            coefficients = self.step(x)
            return read(x, coefficients.pre), coefficients
        coefficients = self(x)
        return kernels.hyper_pre(x, coefficients.pre, backend=self.dims.backend), coefficients

    def normed_pre(self, x: Tensor, norm: RMSNorm) -> tuple[Tensor, Tensor, Coefficients]:
        """Streams [B, T, n, D] -> (norm(H_pre·x) [B, T, D], the streams, the coefficients).

        Coefficients, sum and `post` read the streams; each hands them on to the next, and adds to its gradient.
        """
        if takes_step(x, self.dims.backend):
            y, coefficients = self.pre(x)
            return norm(y), x, coefficients
        coefficients, x = self._coefficients(x)
        options = {"gain": norm.weight, "eps": norm.eps, "hand_on": True, "backend": self.dims.backend}
        return *kernels.hyper_pre(x, coefficients.pre, **options), coefficients

    def post(self, x: Tensor, z: Tensor, coefficients: Coefficients) -> Tensor:
        """H_res·x + H_postᵀ·z, [B, T, n, D]."""
        if takes_step(x, self.dims.backend):
            return write(x, z, coefficients.res, coefficients.post)
        return kernels.hyper_post(x, z, coefficients.res, coefficients.post, backend=self.dims.backend)

    def probe_values(self, coefficients: Coefficients) -> dict[str, Tensor]:
        """pre [B, T, n], post [B, T, n] and res [B, T, n, n], for the probe event "streams"."""
        return coefficients._asdict()


class MatrixResidual(HyperResidual):
    """H_res = project(mat(mα₂·x̂φ_res) + b_res), b_res starting as `start` times the identity."""

    start: float = 0.0

    def __init__(self, config: HyperConfig, dims: Dims) -> None:
        super().__init__(config, dims, config.n_streams**2)
        self.b_res = nn.Parameter(placed(self.start * torch.eye(config.n_streams, device="cpu")))

    @abstractmethod
    def project(self, raw: Tensor) -> Tensor:
        """[..., n, n] -> the scheme's kind of matrices."""

    def bias(self) -> Tensor:
        """b_pre, b_post and vec b_res [2n + n²]."""
        return torch.cat([self.b_pre, self.b_post, self.b_res.flatten()])

    def mixing(self, raw: Tensor) -> Tensor:
        """Numbers [..., n²] -> H_res [..., n, n]."""
        return self.project(raw.unflatten(-1, self.b_res.shape))


def patterns(n: int, frequency: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Two waves over the streams, orthogonal to each other and to the mean: p_i, q_i = cos, sin 2πf(i+½)/n.

    At the highest frequency of an even n, such as n = 2, there is one: p = (1, −1, …), q = 0.
    """
    with torch.device(
        "cpu"
    ):  # of a model without storage, too: arithmetic on the meta device imports the compiler
        if 2 * frequency == n:
            return 1 - 2.0 * (torch.arange(n, dtype=dtype) % 2), torch.zeros(n, dtype=dtype)
        angle = (torch.arange(n, dtype=dtype) + 0.5) * (2 * math.pi * frequency / n)
        return torch.cos(angle), torch.sin(angle)


def initial_biases(n: int, init: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """b_pre, b_post [n], computed in this dtype: from fp32 a model in fp64 would begin 3e-8 off.

    "identity": H_pre = (1 + ½q)/n and H_post = 1 + ½p. The streams leave the first sub-block as multiples of
    1 + ½p of its output, H_pre reads their mean, and the mean of H_post is 1: the mean stream is the plain
    residual. "seed": 1/n and 1, as the OrthGSA document has them, though a sigmoid follows.
    """
    if init == "seed":
        return torch.full((n,), 1 / n), torch.ones(n)
    p, q = patterns(n, dtype=dtype)
    return placed(torch.logit((1 + 0.5 * q) / n)), placed(torch.logit((1 + 0.5 * p) / 2))


def placed(start: Tensor) -> Tensor:
    """Numbers computed on the CPU, on the device where tensors are made."""
    return start.to(torch.get_default_device())


def check(config: HyperConfig) -> None:
    """Refuse options that are out of range. Raises UserError."""
    if config.n_streams < 2:
        raise UserError(f"n_streams={config.n_streams} must be at least 2; for one stream: residual.name=add")
    one_of(config.init, ("identity", "seed"), "init of a residual scheme")
    one_of(config.readout, ("mean", "learned"), "readout of a residual scheme")
    one_of(config.expansion, ("copy", "learned"), "expansion of a residual scheme")
    one_of(config.clip, CLIPPING, "clip of a residual scheme")
    for key in ("warmup_factor", "warmup_hold", "warmup_ramp", "lr_scale"):
        at_least(getattr(config, key), 0, key)
    if config.warmup_share is not None and not 0 < config.warmup_share <= 1:
        raise UserError(f"warmup_share={config.warmup_share} must be above 0 and at most 1, or null")
    if config.alpha == 0:
        raise UserError(
            "with alpha=0 the coefficients could never learn to depend on the streams; try alpha=0.01"
        )


# A cap on what coefficients that depend on the streams do to the gradient: `gain` of `ohc` and `shc`.
#
# An H_res(x) that is orthogonal for every x does not make x → H_res(x)·x an isometry: its differential is H_res·dx +
# dH_res·x. With x̂ = vec x/rms(x) and N = nD numbers a token, ‖x‖ = √N·rms(x) and ‖dx̂‖ ≤ ‖dx‖/rms(x), so that
#
#     ‖dH_res·x‖ ≤ |mα₂|·s·√N·‖dx‖,      s: ‖dH_res‖₂ ≤ |mα₂|·s·‖dx̂‖ (`sensitivity`, each scheme's own)
#
# whatever the size of x. Layers multiply these gains, and Adam drives α·φ up within fifty steps of a high rate. With
# `gain` = g the scale mα₂ becomes mα₂·g/max(g, |mα₂|·s·√N), and ‖∂(H_res(x)x)/∂x − H_res‖₂ ≤ g for all x and all
# weights.


@dataclass
class CappedConfig(HyperConfig):
    """gain: the most that the way through H_res(x) may add to the norm of a gradient, in each sub-block, as a share of
    it (null: no limit).

    The rest as in HyperConfig.
    """

    gain: float | None = added(0.1, before=None)


class CappedResidual(HyperResidual):
    """A scheme with several streams whose mixing may not depend too strongly on them."""

    config: CappedConfig

    def __init__(self, config: CappedConfig, dims: Dims, n_res: int) -> None:
        if config.gain is not None:
            positive(config.gain, "gain of a residual scheme")
        super().__init__(config, dims, n_res)

    @abstractmethod
    def sensitivity(self) -> Tensor:
        """s of ‖dH_res‖₂ ≤ |mα₂|·s·‖dx̂‖, for all x; [] in at least fp32."""

    def path_gain(self) -> Tensor:
        """The bound |mα₂|·s·√(nD) of ‖∂(H_res(x)x)/∂x − H_res‖₂ before the cap, []."""
        return self._bound(super().scale())

    def probe_values(self, coefficients: Coefficients) -> dict[str, Tensor]:
        """pre, post, res, and the bound of the path gain after the cap."""
        return {**super().probe_values(coefficients), "path_gain": self._bound(self.scale())}

    def scale(self) -> Tensor:
        """mα [3]; that of H_res capped."""
        scale = super().scale()
        gain = self.config.gain
        if gain is None:
            return scale
        return capped(scale, self._bound(scale), gain)

    def _bound(self, scale: Tensor) -> Tensor:
        return scale[2].abs() * self.sensitivity() * self.phi_res.shape[1] ** 0.5
