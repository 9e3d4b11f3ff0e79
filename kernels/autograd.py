"""What autograd and its FLOP counter know of our operations: costs, first derivatives, gates, linear maps, norms."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from kernels.dispatch import autocasts

# FLOPs of PyTorch's operators, by formulas of our own.
#
# PyTorch's change with its releases and differ between its forms of attention. Here one model has one count on every
# device: two a multiply-add, every score entry whether masked or not, two products forward and four backward.
# Products of matrices and attention count. Elementwise work does not, nor the short convolution, a multiply-add a tap
# and channel: together under 0.4 % of a layer at a width of 768, in every block. Scores that a backward computes
# again belong to the method and do not count. Operations of ours register their formulas where they are defined.

BACKWARD: dict[object, float] = {}
"""How many times its forward an operator's backward costs, where that is not 2; see `backward_costs`."""


def backward_costs(operator: object, forwards: float) -> None:
    """Declare that the backward of torch.ops.<name space>.<operator> costs so many of its forwards.

    A product's backward costs two: a gradient for either factor. A solve's costs one, a second solve, and an operator
    without a gradient costs none. The counter does not use this, it counts what runs; tests that compare the cost
    of training with that of a forward do.
    """
    BACKWARD[operator] = forwards


def backward_share(operator: object) -> float:
    """Return how many forwards an operator's backward costs: what `backward_costs` declared, else 2."""
    return BACKWARD.get(operator, 2.0)


def attention_flops(score_entries: int, key_width: int, value_width: int) -> int:
    """Return the FLOPs of q·kᵀ and weights·v over so many score entries; a backward costs twice this."""
    return 2 * score_entries * (key_width + value_width)


def flop_counter() -> FlopCounterMode:
    """Return PyTorch's counter with the formulas of this file; the same count in every release, no table at the end."""
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)


def _mm(a, b, *_args, **_options) -> int:
    return 2 * a[0] * a[1] * b[1]


def _bmm(a, b, *_args, **_options) -> int:
    return a[0] * _mm(a[1:], b[1:])


def _added(product):
    """The formula of addmm or baddbmm, whose first argument is the term that the product is added to."""
    return lambda _to, *factors, **_options: product(*factors)


def _sdpa(q, k, v, *_args, **_options) -> int:
    batch, heads, queries, width = q
    return attention_flops(batch * heads * queries * k[2], width, v[3])


def _sdpa_backward(_grad, q, k, v, *_args, **_options) -> int:
    return 2 * _sdpa(q, k, v)


_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")

FORMULAS: dict[object, Callable[..., int]] = {
    torch.ops.aten.mm: _mm,
    torch.ops.aten.addmm: _added(_mm),
    torch.ops.aten.bmm: _bmm,
    torch.ops.aten.baddbmm: _added(_bmm),
    **{getattr(torch.ops.aten, f"_scaled_dot_product_{name}"): _sdpa for name in _FUSED},
    **{getattr(torch.ops.aten, f"_scaled_dot_product_{name}_backward"): _sdpa_backward for name in _FUSED},
}
"""Operators of PyTorch's -> FLOPs from the shapes of their arguments; they come before PyTorch's own formulas."""


# The sigmoid gate on an attention's output, from its logits.


def gated(o: Tensor, logits: Tensor | None) -> Tensor:
    """Return o ⊙ σ(logits) in o's dtype, computed in at least fp32; o itself where there are no logits.

    Saved for the backward are the result, which whatever reads it saves as well, and the logits; neither o nor σ:

        ō = ȳ ⊙ σ(l),   l̄ = ȳ ⊙ o ⊙ σ(l) ⊙ (1 − σ(l)) = ȳ ⊙ y ⊙ (1 − σ(l))

    o, logits  [..., K], one shape, any floating dtypes
    """
    return o if logits is None else _Gated.apply(o, logits)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o: Tensor, logits: Tensor) -> Tensor:
        wide = torch.promote_types(o.dtype, torch.float32)
        y = (o.to(wide) * torch.sigmoid(logits.to(wide))).to(o.dtype)
        ctx.save_for_backward(y, logits)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        y, logits = ctx.saved_tensors
        wide = torch.promote_types(y.dtype, torch.float32)
        gate, grad = torch.sigmoid(logits.to(wide)), grad.to(wide)
        return (grad * gate).to(y.dtype), (grad * y * (1 - gate)).to(logits.dtype)


# Several linear maps of one input, and the norm before them, in as few passes as PyTorch's operators allow.


def linears(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """Return x·W_iᵀ + b_i of one input, [..., N_i] each.

    x [..., D], weights [N_i, D], biases [N_i] or None, any floating dtypes. Under autocast and on a GPU the weights are
    joined: one cast, one product. On a CPU that gains nothing, but the gradient of x is added up by the products
    themselves, which takes 7 % off the three of q, k and v.
    """
    if joins(x):
        added = None
        if any(bias is not None for bias in biases):
            parts = []
            for absent, maps in itertools.groupby(zip(weights, biases, strict=True), lambda m: m[1] is None):
                rows, given = zip(*maps, strict=True)
                parts += [rows[0].new_zeros(sum(map(len, rows)))] if absent else given
            added = torch.cat(parts)
        return list(F.linear(x, torch.cat(list(weights)), added).split([len(w) for w in weights], -1))
    parts = _Linears.apply(x, *weights) if _has_graph() else [F.linear(x, weight) for weight in weights]
    return [y if bias is None else y + bias for y, bias in zip(parts, biases, strict=True)]


def joins(x: Tensor) -> bool:
    """Return whether `linears` of x [..., D] joins its maps into one product."""
    return autocasts(x) or x.is_cuda


def _has_graph() -> bool:
    """Return whether a graph is kept: inference mode keeps none, also where gradients are enabled within it."""
    # Dynamo cannot trace the second question, and has no inference mode.
    return torch.is_grad_enabled() and (
        torch.compiler.is_compiling() or not torch.is_inference_mode_enabled()
    )


class _Linears(torch.autograd.Function):
    """y_i = x·W_iᵀ;   x̄ = Σ_i ȳ_i·W_i, each product added to those before as it is written,   W̄_i = ȳ_iᵀ·x."""

    @staticmethod
    def forward(ctx, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        ctx.set_materialize_grads(False)
        return tuple(F.linear(x, weight) for weight in weights)

    @staticmethod
    def backward(ctx, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        rows, into, found = x.flatten(0, -2), None, []
        for gradient, weight in zip(gradients, weights, strict=True):
            if gradient is None:  # nobody reads this map
                found.append(None)
                continue
            gradient = gradient.flatten(0, -2)
            found.append(gradient.t() @ rows)
            if into is None:
                into = gradient @ weight
            else:
                into = torch.addmm(into, gradient, weight, out=None if torch.is_grad_enabled() else into)
        return None if into is None else into.view_as(x), *found


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Return x · (mean(x²) + eps)^(−1/2) ⊙ gain over the last axis: x [..., D], gain [D], one dtype -> [..., D].

    PyTorch has one kernel for it on a GPU; on a CPU a dozen passes each way, of which these are half.
    """
    if x.device.type == "cpu" and _has_graph() and not torch.compiler.is_compiling():
        return _RMSNorm.apply(x, gain, eps)
    return F.rms_norm(x, gain.shape, gain, eps)


def l2norm(x: Tensor) -> Tensor:
    """x [..., D] · rsqrt(Σx² + 1e-6) over the last axis, computed in at least fp32, returned in x's dtype."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


class _RMSNorm(torch.autograd.Function):
    """y = r·x ⊙ g, r = (mean(x²) + ε)^(−1/2);   x̄ = r·(ȳ ⊙ g − (r²/D)·(Σ ȳ ⊙ x ⊙ g)·x),   ḡ = Σ r·(ȳ ⊙ x)."""

    @staticmethod
    def forward(ctx, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        factor = _RMSNorm.factor(x, eps)
        ctx.save_for_backward(x, gain, factor)
        ctx.eps = eps
        return (x * factor).mul_(gain)

    @staticmethod
    def factor(x: Tensor, eps: float) -> Tensor:
        return torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1] + eps)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, gain, factor = ctx.saved_tensors
        if torch.is_grad_enabled():  # the factor has derivatives of its own then
            factor = _RMSNorm.factor(x, ctx.eps)
        products = (grad * x).flatten(0, -2)
        # Sums, and no products with a vector: BLAS rounds those by how memory is aligned, which FSDP changes.
        slope = (products * gain).sum(-1).view_as(factor) * factor.square() / -x.shape[-1]
        shares = (factor.flatten().unsqueeze(-1) * products).sum(0)
        return torch.addcmul(grad * gain, x, slope) * factor, shares, None


# Kernels have first derivatives only: a second one raises instead of being wrong.


def first_order(backward: Callable) -> Callable:
    """Decorate the `backward` of an autograd.Function or a custom operator so that its results have no derivative.

    One that is asked for raises RuntimeError. PyTorch's `once_differentiable` is not enough: results of a gradient that
    is a constant, as that of `out.sum()` is, pass for constants there, and where gradients are asked for by their
    inputs, as in `torch.autograd.grad`, no way leads to the error.
    """

    @functools.wraps(backward)
    def call(ctx, *gradients: Tensor | None):
        if not torch.is_grad_enabled():
            return backward(ctx, *gradients)
        ctx = _Unpacked(ctx)
        with torch.no_grad():
            computed = backward(ctx, *gradients)
        computed = (computed,) if isinstance(computed, Tensor) else computed
        results = [x for x in computed if x is not None]
        known = [x for x in (*gradients, *ctx.saved_tensors) if x is not None]
        # A leaf of its own, as all that is known may be constant.
        leaf = torch.ones((), requires_grad=True)
        refused = iter(_Refused.apply(len(results), *results, *known, leaf))
        return tuple(x if x is None else next(refused) for x in computed)

    return call


class _Unpacked:
    """A context whose saved tensors are unpacked once, as checkpoints demand."""

    def __init__(self, ctx) -> None:
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str):
        return getattr(self._ctx, name)


class _Refused(torch.autograd.Function):
    """Tensors that depend on all that a `backward` knows, and have no derivative."""

    @staticmethod
    def forward(ctx, count: int, *tensors: Tensor):
        return tuple(x.view_as(x) for x in tensors[:count])

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(
            'trying to differentiate twice an operation with first derivatives only; use backend="reference"'
        )
