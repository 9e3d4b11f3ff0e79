"""The residual streams: their size, how many of their n dimensions are in use, and norms of what mixes them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.probes.events import ProbeEvent
from zoo.probes.measure import (
    Measure,
    Row,
    chain_product,
    matrix_norms,
    register_measure,
    row,
    singular_values,
)


@register_measure
class StreamDimensions(Measure):
    """Size and principal components of the streams x [B, T, n, D] before every sub-block and the head, in fp64.

        stream_rms                  root mean square of all numbers
        stream_spread               ‖x − mean stream‖/‖x‖, all tokens together: 0 where all streams are equal
        λ_1 ≥ … ≥ λ_n               eigenvalues of Σ x_d·x_dᵀ [n, n], over all tokens and channels d, uncentred
        stream_energy  [0, r)       (λ_1 + … + λ_r) / Σλ: share of Σ‖x‖² in the r leading directions of R^n
        stream_error   [0, r)       √(1 − energy): ‖x − x_r‖/‖x‖ of the streams rebuilt from these directions

    One stream has one direction: energy 1, error 0.
    """

    name = "stream_dimensions"
    kinds = ("streams",)

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Rows of the streams before one sub-block or the head."""
        x = as_streams(event.values["streams"])
        tokens = x.shape[0] * x.shape[1]
        yield row(event, "stream_rms", x.square().mean().sqrt(), count=tokens)
        spread = (x - x.mean(-2, keepdim=True)).norm() / x.norm()
        yield row(event, "stream_spread", spread, count=tokens)
        energy, error = retained_by_rank(x)
        for name, values in (("stream_energy", energy), ("stream_error", error)):
            for rank, value in enumerate(values.tolist(), 1):
                yield row(event, name, value, axis="rank", start=0, end=rank, count=tokens)


def as_streams(x: Tensor) -> Tensor:
    """[B, T, D] or [B, T, n, D] -> [B, T, n, D] in fp64, without a graph."""
    x = x.detach().double()
    return x if x.dim() == 4 else x.unsqueeze(-2)


def retained_by_rank(x: Tensor) -> tuple[Tensor, Tensor]:
    """Energy and relative error [n] of x [B, T, n, D] in its 1, 2, … n leading principal directions of R^n."""
    spectrum = singular_values(torch.einsum("btid,btjd->ij", x, x))  # of a Gram matrix: its eigenvalues
    share = spectrum / spectrum.sum()
    lost = (
        share.flip(0).cumsum(0).flip(0) - share
    )  # a sum of the small ones: 1 − energy would round them away
    return share.cumsum(0), lost.sqrt()


@register_measure
class Mixing(Measure):
    """Norms (zoo.probes.measure) of every token's mixing matrices, then their means over the tokens.

        h_res_*      of H_l [n, n] of sub-block l, in fp64
        composite_*  of H_l·…·H_2·H_1: from the first sub-block up to and with this one

    * is sigma (axis "rank" [i, i+1): the i-th singular value), sigma_max, sigma_min, amax, row_sum. A plain residual is
    H = (1): everything is 1. A scheme that does not show its H (`probe_values` without "res") has no rows. A product
    beyond fp64 has infinite norms and singular values that are NaN. The loss of factorised streams between layers
    (zoo.residuals.shc) is not in the product.
    """

    name = "mixing"
    kinds = ("streams",)

    def __init__(self) -> None:
        self.so_far: list[Tensor] = []

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Rows of H_res of a sub-block, and of the product up to it; none for the head, and where H is not shown."""
        if "res" not in event.values:
            return
        tokens = event.values["streams"].shape[:2]
        res = event.values["res"].detach().double().expand(*tokens, -1, -1)
        self.so_far = [chain_product([*self.so_far, res])]
        yield from _norm_rows(event, "h_res", res)
        yield from _norm_rows(event, "composite", self.so_far[0])


def _norm_rows(event: ProbeEvent, of: str, matrix: Tensor) -> Iterator[Row]:
    tokens = matrix[..., 0, 0].numel()
    found = matrix_norms(matrix)
    for rank, value in enumerate(found.pop("sigma").flatten(0, -2).mean(0).tolist()):
        yield row(event, f"{of}_sigma", value, axis="rank", start=rank, end=rank + 1, count=tokens)
    for name, value in found.items():
        yield row(event, f"{of}_{name}", value.mean(), count=tokens)
