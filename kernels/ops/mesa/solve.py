"""The linear systems of all tokens, solved together; none of their matrices is ever formed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from kernels.flops import backward_costs

BLOCK_BYTES = 1 << 20
"""Bytes that one step reads of a block of chunks, about: as many as stay in a core's L2 cache."""


class Systems(NamedTuple):
    """One matrix a token, A_t = Λ + c_t·S + Σ_{s ≤ t} W_ts·k_s·k_sᵀ, the sum over the tokens of t's chunk.

    k        [L, C, K], the keys of L chunks of C tokens
    start    [L, K, K], S: Σ k·kᵀ before a chunk, symmetric
    carry    [L, C, 1], c: the decay from the chunk's start to a token
    weights  [L, C, C], W: β_s times the decay from s to t; 0 for s > t
    lamb     [L, 1, K], the diagonal of Λ
    """

    k: Tensor
    start: Tensor
    carry: Tensor
    weights: Tensor
    lamb: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Return A_t·x_t for every token, [L, C, K]: two products of C × C × K and one of C × K × K a chunk."""
        y = torch.bmm(x, self.start).mul_(self.carry).addcmul_(x, self.lamb)
        return y.baddbmm_(torch.bmm(x, self.k.mT).mul_(self.weights), self.k)


# One operator: thirty steps in a graph, in every layer, would take a compiler minutes.
@torch.library.custom_op("archzoo::mesa_solve", mutates_args=())
def solve(
    b: Tensor, k: Tensor, start: Tensor, carry: Tensor, weights: Tensor, lamb: Tensor, steps: int
) -> Tensor:
    """Solve x_t = A_t⁻¹·b_t by conjugate gradients, differentiated by a second solve, since A_t is symmetric.

        y_t = A_t⁻¹·x̄_t,   b̄_t = y_t,   Ā_t = −y_t·x_tᵀ, and from it those of k, S, c, W, Λ

    b [L, C, K], the rest as in `Systems` -> [L, C, K]. The gradient is that of the exact solution, right as
    far as both solves have converged. On CPUs a few chunks are solved at a time: their vectors stay in cache.
    """
    systems = Systems(k, start, carry, weights, lamb)
    if b.device.type != "cpu" or not len(b):
        return conjugate_gradient(systems, b, steps)
    rows = max(1, BLOCK_BYTES // (6 * b[0].nbytes + sum(x[0].nbytes for x in systems)))
    parts = zip(b.split(rows), *(x.split(rows) for x in systems), strict=True)
    return torch.cat([conjugate_gradient(Systems(*part), b, steps) for b, *part in parts])


@solve.register_fake
def _(b, k, start, carry, weights, lamb, steps):
    return b.new_empty(b.shape)


def _save(ctx, inputs, output):
    *tensors, ctx.steps = inputs
    ctx.save_for_backward(output, *tensors[1:])


def _backward(ctx, grad: Tensor):
    x, *systems = ctx.saved_tensors
    k, start, carry, weights, _ = systems
    y = solve(grad, *systems, ctx.steps)
    xk, yk = torch.bmm(x, k.mT), torch.bmm(y, k.mT)
    d_k = -torch.baddbmm(torch.bmm((xk * weights).mT, y), (yk * weights).mT, x)
    d_start = -torch.bmm((carry * x).mT, y)
    d_carry = -(torch.bmm(x, start) * y).sum(-1, keepdim=True)
    d_lamb = -(x * y).sum(1, keepdim=True)
    return y, d_k, d_start, d_carry, -xk * yk, d_lamb, None


solve.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.archzoo.mesa_solve)
def _flops(b, k, start, carry, weights, lamb, steps, *, out_shape=None, **_) -> int:
    """All steps; what a token saves by converging early depends on values."""
    chunks, size, width = b
    return 2 * chunks * size * width * steps * (width + 2 * size)


backward_costs(torch.ops.archzoo.mesa_solve, 1)  # the second solve, whatever the first took


def conjugate_gradient(systems: Systems, b: Tensor, steps: int) -> Tensor:
    """Solve A_t·x_t = b_t for every token by itself, by at most `steps` steps from x = 0, preconditioned by Λ.

    b [L, C, K] -> x [L, C, K] in b's dtype; the systems A_t = H_t + Λ: `Systems`.

    b is scaled to 1, so that a small gradient does not underflow when it is squared. A token whose residual
    has fallen to a hundredth of the rounding error does not change from then on; 0/0 cannot occur.
    """
    scale = b.abs().amax(-1, keepdim=True)
    r = b / scale.masked_fill(scale == 0, 1)
    z = r / systems.lamb
    x, p, rz = torch.zeros_like(r), z.clone(), _dot(r, z)
    enough = rz * (0.01 * torch.finfo(b.dtype).eps) ** 2
    for _ in range(steps):
        live = ~(rz <= enough)  # a NaN goes on, and into the solution
        if b.device.type == "cpu" and not live.any():  # a GPU would have to be waited for
            break
        ap = systems.apply(p)
        alpha = torch.where(live, rz / _dot(p, ap), 0)
        x.addcmul_(alpha, p)
        r.addcmul_(alpha, ap, value=-1)
        z = r / systems.lamb
        rz, old = _dot(r, z), rz
        p.mul_(torch.where(live, rz / old, 0)).add_(z)
    return x.mul_(scale)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.vecdot(x, y).unsqueeze(-1)
