"""How sub-blocks mix the residual streams: each H_res, and the product of all so far."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.gains import composite, gains
from zoo.probe import Sight
from zoo.probes.measure import Measure, register
from zoo.probes.rows import Row, row


@register
class Mixing(Measure):
    """Gains (zoo.gains) of every token's mixing matrices, then their means over the tokens.

        h_res_*      of H_l [n, n] of sub-block l, in fp64
        composite_*  of H_l·…·H_2·H_1: from the first sub-block up to and with this one

    * is sigma (axis "rank" [i, i+1): the i-th singular value), sigma_max, sigma_min, amax, row_sum. A plain residual is
    H = (1): everything is 1. A product beyond fp64 shows as infinite gains and singular values that are NaN. What
    factorised streams lose between layers (zoo.factorise) is not in the product.
    """

    name = "mixing"
    kinds = ("streams",)

    def __init__(self) -> None:
        self.so_far: list[Tensor] = []

    def see(self, sight: Sight) -> Iterator[Row]:
        if sight.part == "head":
            return
        res = mixing_matrix(sight)
        self.so_far = [composite([*self.so_far, res])]
        yield from _gain_rows(sight, "h_res", res)
        yield from _gain_rows(sight, "composite", self.so_far[0])


def mixing_matrix(sight: Sight) -> Tensor:
    """H_res [B, T, n, n] in fp64, (1) where there is one stream."""
    streams = sight.values["streams"]
    res = sight.values.get("res", torch.ones(*streams.shape[:2], 1, 1, device=streams.device))
    return res.detach().double()


def _gain_rows(sight: Sight, of: str, matrix: Tensor) -> Iterator[Row]:
    tokens = matrix[..., 0, 0].numel()
    found = gains(matrix)
    for rank, value in enumerate(found.pop("sigma").flatten(0, -2).mean(0).tolist()):
        yield row(sight, f"{of}_sigma", value, axis="rank", start=rank, end=rank + 1, count=tokens)
    for name, value in found.items():
        yield row(sight, f"{of}_{name}", value.mean(), count=tokens)
