"""Size of the residual streams, and how many of their n dimensions are in use."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.probes.events import ProbeEvent
from zoo.probes.measure import Measure, Row, register_measure, row, singular_values


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
