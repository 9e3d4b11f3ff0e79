"""The coefficients of hyper-connections, by which a token reads, writes and mixes its streams.

Here are the public function, its definition and PyTorch's form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.autograd import first_order
from kernels.dispatch import Operation, always, on_cuda, only_when_named, without_autocast
from kernels.streams import check_streams
from kernels.triton_common import lazily, refusal
from kernels.triton_common.tiles import Work, nbytes

# The definition.


def capped(scale: Tensor, bound: Tensor, gain: float) -> Tensor:
    """The scale [3] whose last number, of res, is multiplied by g/max(g, bound) for a gain g and a bound []."""
    return torch.cat([scale[:2], scale[2:] * (gain / bound.clamp(min=gain))])


def capped_by_rotations(scale: Tensor, phi: Tensor, n: int, cap: tuple[float, float] | None) -> Tensor:
    """The scale [3] under `cap`, as the public function describes it; itself without one. phi [2n + n², n·D]."""
    if cap is None:
        return scale
    matrices = phi[2 * n :].unflatten(0, (n, n))
    norm = torch.linalg.vector_norm((matrices - matrices.transpose(0, 1)) / 2)
    return capped(scale, scale[2].abs() * (cap[1] * norm) * phi.shape[1] ** 0.5, cap[0])


def hyper_coefficients_reference(
    streams: Tensor,
    phi: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    cap: tuple[float, float] | None,
    eps: float,
    hand_on: bool,
) -> tuple[Tensor, ...]:
    """Return σ(s₀·φx̂ + b), 2σ(s₁·φx̂ + b) and s₂·φx̂ + b, with x̂ = vec x / √(mean(x²) + eps).

    streams [B, T, n, D], phi [2n + m, n·D], scale [3], bias [2n + m] -> [B, T, n], [B, T, n], [B, T, m],
    in at least fp32.
    """
    wide = torch.promote_types(streams.dtype, torch.float32)
    n = streams.shape[-2]
    x, phi, scale, bias = (y.to(wide) for y in (streams.flatten(-2), phi, scale, bias))
    with without_autocast(x):
        raw = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)) @ phi.T
    scale = capped_by_rotations(scale, phi, n, cap)
    parts = (n, n, len(phi) - 2 * n)
    pre, post, res = (
        s * y + b for s, y, b in zip(scale, raw.split(parts, -1), bias.split(parts), strict=True)
    )
    return torch.sigmoid(pre), 2 * torch.sigmoid(post), res, *([streams] if hand_on else [])


# Three passes over the streams, forward and backward.


def hyper_coefficients_torch(
    streams: Tensor,
    phi: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    cap: tuple[float, float] | None,
    eps: float,
    hand_on: bool,
) -> tuple[Tensor, ...]:
    """Compute `kernels.hyper_coefficients`: the product first, then its scale.

    streams [B, T, n, D], phi [2n + m, n·D], scale [3], bias [2n + m] -> [B, T, n], [B, T, n], [B, T, m],
    in at least fp32;
    with hand_on the streams, fourth.
    """
    wide = torch.promote_types(streams.dtype, torch.float32)
    scale = capped_by_rotations(scale, phi, streams.shape[-2], cap)
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


# The public function and its backends.

__all__ = ["hyper_coefficients"]


def _refuses(streams: Tensor, phi: Tensor, scale: Tensor, bias: Tensor, **_options) -> str | None:
    return refusal(streams, phi, scale, bias, widths=(len(phi),))


OPERATION = Operation("hyper_coefficients")
OPERATION.register(
    "triton",
    lazily("kernels.ops.hyper_coefficients_triton", "hyper_coefficients_triton"),
    refuses=_refuses,
    suits=on_cuda,
)
OPERATION.register("torch", hyper_coefficients_torch, suits=always)
OPERATION.register("reference", hyper_coefficients_reference, suits=only_when_named)


def hyper_coefficients(
    streams: Tensor,
    phi: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    cap: tuple[float, float] | None = None,
    eps: float = 1e-6,
    hand_on: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, ...]:
    """Compute the coefficients by which every token reads its streams, writes to them, and mixes them.

        raw = φ·vec x · (mean(x²) + eps)^(−1/2)          in parts of n, n and m: pre, post, res
        h_pre = σ(s₀·raw_pre + b_pre),   h_post = 2σ(s₁·raw_post + b_post),   res = s₂·raw_res + b_res

    streams  [B, T, n, D], x; any floating dtype
    phi      [2n + m, n·D], m ≥ 0 (n² where a scheme's own map makes a matrix of res)
    scale    [3], s
    bias     [2n + m], b
    cap      (g, c): s₂ becomes s₂·g/max(g, |s₂|·c·‖skew φ_res‖_F·√(nD)), φ_res as [n, n, nD], so that m = n²; None:
             it stays
    hand_on  return the streams too, fourth, for those who read them next: their gradient is then added to this one's
             as it is written (not by `reference`, nor by torch in 16 bit: there autograd adds them)
    backend  auto, triton (what auto takes on a GPU; 2n + m ≤ 256), torch (scales the product, so that the
             normalised x is never written, as triton does), reference
    returns  h_pre [B, T, n], h_post [B, T, n], res [B, T, m] in at least fp32, under autocast too

    Raises ValueError for shapes that do not fit, and for an unknown backend.
    Source: mHC (arXiv:2512.24880), equations 5 and 7, and its section on fused kernels, which divides after the
    product too.
    """
    n, width = streams.shape[-2:] if streams.dim() == 4 else (0, 0)
    rows = max(2 * n, len(phi))
    check_streams(
        "hyper_coefficients", streams, phi=(phi, (rows, n * width)), scale=(scale, (3,)), bias=(bias, (rows,))
    )
    if cap is not None and len(phi) != n * (n + 2):
        raise ValueError(
            f"hyper_coefficients with a cap needs a φ of 2n + n² = {n * (n + 2)} rows, got {len(phi)}"
        )
    return OPERATION(streams, phi, scale, bias, cap=cap, eps=eps, hand_on=hand_on, backend=backend)


# Operations and bytes, for a roofline.


def work(
    streams: Tensor, phi: Tensor, scale: Tensor, bias: Tensor, *, hand_on: bool = False, **_options
) -> list[Work]:
    """Count the operations and bytes of a call: the product and the squares; backward the products of both gradients.

    Saved are, in fp32, the product after its scale and the scale; their few operations a token are not counted.
    Where the streams are handed on the backward reads their gradient so far.

    streams [B, T, n, D], phi [2n + m, n·D], scale [3], bias [2n + m].
    """
    tokens = streams.numel() // phi.shape[1]
    product, squares = 2 * tokens * phi.numel(), 2 * streams.numel()
    numbers = 4 * tokens * len(phi)  # of all rows in fp32: the coefficients, their gradients, what is saved
    once = nbytes(streams, phi, scale, bias)
    saved = numbers + 4 * tokens
    more = nbytes(streams) if hand_on else 0
    return [
        Work("hyper_coefficients", "forward", product + squares, once + numbers + saved),
        Work("hyper_coefficients", "backward", 2 * product + squares, 2 * once + numbers + saved + more),
    ]
