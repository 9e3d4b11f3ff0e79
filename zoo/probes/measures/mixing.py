"""Norms of the matrices that mix the residual streams: each H_res, and the product of all up to it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.probes.events import ProbeEvent
from zoo.probes.measure import Measure, Row, chain_product, matrix_norms, register_measure, row


@register_measure
class Mixing(Measure):
    """Norms (zoo.probes.measure) of every token's mixing matrices, then their means over the tokens.

        h_res_*      of H_l [n, n] of sub-block l, in fp64
        composite_*  of H_l·…·H_2·H_1: from the first sub-block up to and with this one

    * is sigma (axis "rank" [i, i+1): the i-th singular value), sigma_max, sigma_min, amax, row_sum. A plain residual is
    H = (1): everything is 1. A product beyond fp64 has infinite norms and singular values that are NaN. The
    loss of factorised streams between layers (zoo.residuals.shc) is not in the product.
    """

    name = "mixing"
    kinds = ("streams",)

    def __init__(self) -> None:
        self.so_far: list[Tensor] = []

    def update(self, event: ProbeEvent) -> Iterator[Row]:
        """Rows of H_res of a sub-block, and of the product up to it; none for the head."""
        if event.part == "head":
            return
        res = mixing_matrix(event)
        self.so_far = [chain_product([*self.so_far, res])]
        yield from _norm_rows(event, "h_res", res)
        yield from _norm_rows(event, "composite", self.so_far[0])


def mixing_matrix(event: ProbeEvent) -> Tensor:
    """H_res [B, T, n, n] in fp64, (1) where there is one stream."""
    streams = event.values["streams"]
    res = event.values.get("res", torch.ones(*streams.shape[:2], 1, 1, device=streams.device))
    return res.detach().double()


def _norm_rows(event: ProbeEvent, of: str, matrix: Tensor) -> Iterator[Row]:
    tokens = matrix[..., 0, 0].numel()
    found = matrix_norms(matrix)
    for rank, value in enumerate(found.pop("sigma").flatten(0, -2).mean(0).tolist()):
        yield row(event, f"{of}_sigma", value, axis="rank", start=rank, end=rank + 1, count=tokens)
    for name, value in found.items():
        yield row(event, f"{of}_{name}", value.mean(), count=tokens)
