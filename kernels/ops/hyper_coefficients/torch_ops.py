"""The coefficients of hyper-connections in three passes over the streams, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import without_autocast
from kernels.gradients import first_order


def hyper_coefficients_torch(
    streams: Tensor, phi: Tensor, scale: Tensor, bias: Tensor, *, eps: float, hand_on: bool
) -> tuple[Tensor, ...]:
    """Compute `kernels.hyper_coefficients`: the product first, then its scale.

    streams [B, T, n, D], phi [2n + m, n·D], scale [3], bias [2n + m] -> [B, T, n], [B, T, n], [B, T, m],
    in at least fp32;
    with hand_on the streams, fourth.
    """
    wide = torch.promote_types(streams.dtype, torch.float32)
    with without_autocast(streams):
        *numbers, handed = _Coefficients.apply(*(x.to(wide) for x in (streams, phi, scale, bias)), eps)
    # Streams of half precision are handed on as they are, and autograd adds their gradients.
    return (*numbers, handed if handed.dtype == streams.dtype else streams) if hand_on else tuple(numbers)


class _Coefficients(torch.autograd.Function):
    """With raw = r·φ·vec x, r = (mean(x²) + eps)^(−1/2), and l = s·raw + b before the sigmoids:

    b̄ = Σ l̄,   s̄ = Σ l̄·raw,   p̄ = r·s·l̄ (of φ·vec x),   x̄ = φᵀ·p̄ − r·(p̄·raw)/(nD) · x,   φ̄ = Σ p̄·xᵀ.

    x is handed on, and x̄ is added to its gradient so far.
    """

    @staticmethod
    def forward(ctx, x: Tensor, phi: Tensor, scale: Tensor, bias: Tensor, eps: float):
        flat, n = x.flatten(-2), x.shape[-2]
        square = torch.linalg.vector_norm(flat, dim=-1, keepdim=True).square()
        inverse = torch.rsqrt(square / flat.shape[-1] + eps)
        raw = (flat @ phi.T) * inverse
        logits = torch.addcmul(bias, raw, _by_row(scale, n, len(phi)))
        pre = torch.sigmoid(logits[..., :n])
        post = 2 * torch.sigmoid(logits[..., n : 2 * n])
        ctx.save_for_backward(x, phi, scale, inverse, raw, pre, post)
        ctx.set_materialize_grads(False)
        return pre, post, logits[..., 2 * n :].contiguous(), x

    @staticmethod
    @first_order
    def backward(
        ctx, d_pre: Tensor | None, d_post: Tensor | None, d_res: Tensor | None, handed: Tensor | None
    ):
        x, phi, scale, inverse, raw, pre, post = ctx.saved_tensors
        d_pre, d_post = (torch.zeros_like(y) if d is None else d for d, y in ((d_pre, pre), (d_post, post)))
        if d_res is None:
            d_res = raw.new_zeros(*raw.shape[:-1], len(phi) - 2 * x.shape[-2])
        flat, n = x.flatten(-2), x.shape[-2]
        with without_autocast(x):
            slopes = d_pre * pre * (1 - pre), d_post * post * (1 - post / 2)
            d_logits = torch.cat([*slopes, d_res], -1)
            d_bias = d_logits.sum_to_size(len(phi))
            d_scale = _of_parts((d_logits * raw).sum_to_size(len(phi)), n)
            d_product = d_logits * inverse * _by_row(scale, n, len(phi))
            along = (d_product * raw).sum(-1, keepdim=True) * inverse / -flat.shape[-1]
            d_x = _affine(None if handed is None else handed.flatten(-2), d_product, phi)
            d_x = d_x.addcmul_(along, flat).view(x.shape)
            d_phi = d_product.flatten(0, -2).T @ flat.flatten(0, -2)
        return d_x, d_phi, d_scale, d_bias, None


def _affine(start: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    """start + x·weight, in one pass over the result: [..., R], [R, D] -> [..., D]."""
    if start is None:
        return x @ weight
    return torch.addmm(start.flatten(0, -2), x.flatten(0, -2), weight).view(start.shape)


def _by_row(scale: Tensor, n: int, rows: int) -> Tensor:
    """[3] -> [rows]: the scale of each row of φ."""
    return torch.cat([s.expand(length) for s, length in zip(scale, (n, n, rows - 2 * n), strict=True)])


def _of_parts(x: Tensor, n: int) -> Tensor:
    """[rows] -> [3]: the sums over n, n and the other rows."""
    return torch.stack([x[:n].sum(), x[n : 2 * n].sum(), x[2 * n :].sum()])
