"""Measures: what turns the events of one forward pass into rows of a table, and numbers that several of them need."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from zoo.errors import UserError
from zoo.probes.events import ProbeEvent
from zoo.registry import is_left_out

if TYPE_CHECKING:
    from zoo.model import LanguageModel


# Products of residual mixing matrices, and the different numbers that are called the "norm" of one.
#
# They differ: an orthogonal 4×4 matrix has σ_max = 1 and may have an Amax gain of 2, and a bound on σ_max from above
# does not keep σ_min from vanishing.


def chain_product(matrices: Iterable[Tensor]) -> Tensor:
    """M = H_L·…·H_2·H_1 [..., n, n], in fp64: the effect of L sub-blocks on the streams; ValueError for none."""
    product: Tensor | None = None
    for matrix in matrices:
        product = matrix.double() if product is None else matrix.double() @ product
    if product is None:
        raise ValueError("chain_product needs at least one matrix")
    return product


def matrix_norms(matrix: Tensor) -> dict[str, Tensor]:
    """The norms of M [..., n, n], each [...] but for the first.

    sigma                 all singular values [..., n], largest first
    sigma_max, sigma_min  the largest and the smallest; what is below σ_max·eps of the dtype is rounding
    amax                  max(max_i |Σ_j M_ij|, max_j |Σ_i M_ij|): signed sums, as mHC's figures have it
    row_sum               max_i Σ_j |M_ij|: the largest growth of a stream's largest entry
    """
    sigma = singular_values(matrix)
    rows, columns = matrix.sum(-1).abs().amax(-1), matrix.sum(-2).abs().amax(-1)
    return {
        "sigma": sigma,
        "sigma_max": sigma[..., 0],
        "sigma_min": sigma[..., -1],
        "amax": torch.maximum(rows, columns),
        "row_sum": matrix.abs().sum(-1).amax(-1),
    }


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values [..., n] of M [..., n, n], largest first; NaN where M is not finite (LAPACK would raise)."""
    finite = matrix.isfinite().all(-1).all(-1)
    values = torch.linalg.svdvals(torch.where(finite[..., None, None], matrix, 0.0))
    return torch.where(finite[..., None], values, torch.nan)


# A row.


class Row(NamedTuple):
    """One number about one place in the model.

    layer   from 0; the number of layers stands for what comes after the last one; None: of the whole model
    part    "mixer", "channel", "head", or "" for the whole model
    block   registered name of the mixer or channel mixer
    head    from 0, None where there are no heads
    axis    what start and end count: "" (nothing), "position" or "distance" in tokens, "expert", "rank", "step",
            "quantile"
    start   first value of the bucket, None without an axis
    end     one past the last (of a quantile: the quantile)
    measure what the number is
    value   the number
    count   number of observations that it is the mean of
    """

    layer: int | None
    part: str
    block: str
    head: int | None
    axis: str
    start: float | None
    end: float | None
    measure: str
    value: float
    count: int


def row(
    event: ProbeEvent,
    measure: str,
    value: float | Tensor,
    *,
    head: int | None = None,
    axis: str = "",
    start: float | None = None,
    end: float | None = None,
    count: int = 1,
) -> Row:
    """A row at the place of an event; value: a number, or a tensor [] of one."""
    return Row(
        event.layer, event.part, event.block, head, axis, start, end, measure, float(value), int(count)
    )


def by_head(event: ProbeEvent, measure: str, values: Tensor, count: int, **bucket) -> Iterator[Row]:
    """One row per head: values [H]."""
    for head, value in enumerate(values.tolist()):
        yield row(event, measure, value, head=head, count=count, **bucket)


def buckets(length: int, first: int = 16) -> list[tuple[int, int]]:
    """[0, first), [first, 2·first), [2·first, 4·first) … up to `length`: positions and distances, by doubling."""
    edges = [0]
    while edges[-1] < length:
        edges.append(min(length, max(first, 2 * edges[-1])))
    return list(itertools.pairwise(edges))


# The interface of a measure.


class Measure(ABC):
    """Takes the events of its `kinds` during one forward pass, in the order of the layers, and returns rows.

    One instance per pass. `needs_gradient`: the pass builds its graph, and `finish` gets the loss, which it may
    differentiate (retaining the graph) with respect to the recorded tensors. `warns_of`: the name of the mixer that
    `notices` is about, "" where there are none.
    """

    name: str
    kinds: tuple[str, ...]
    needs_gradient = False
    warns_of = ""

    @abstractmethod
    def update(self, event: ProbeEvent) -> Iterable[Row]:
        """Rows about the place in the model where the event was recorded."""

    def finish(self, model: LanguageModel, loss: Tensor) -> Iterable[Row]:
        """Rows about the whole model, after the pass; loss []: mean cross-entropy in nats a token."""
        return ()

    @classmethod
    def correct_averages(cls, rows: list[Row]) -> list[Row]:
        """Rows averaged over batches, with values that are no means over tokens (a largest load, say) recomputed."""
        return rows

    @classmethod
    def notices(cls, rows: list[Row]) -> Iterable[str]:
        """A sentence for each thing that, by all measures' rows of a model, is wrong with the model's own numbers."""
        return ()


def check_graph(loss: Tensor, measure: str) -> None:
    """Raise UserError where the loss [] has no graph, which `torch.inference_mode` does not keep."""
    if not loss.requires_grad:
        raise UserError(f"the measure '{measure}' needs gradients: measure outside torch.inference_mode()")


_MEASURES: dict[str, type[Measure]] = {}


def register_measure(cls: type[Measure]) -> type[Measure]:
    """Register a measure under its name; a class decorator.

    Raises ValueError for a name that is taken, and for a class that no pass can make one of.
    """
    name, kinds = getattr(cls, "name", None), getattr(cls, "kinds", None)
    if not (
        isinstance(name, str) and name and isinstance(kinds, tuple) and all(isinstance(x, str) for x in kinds)
    ):
        raise ValueError(
            f"{cls.__module__}: a measure has a name, and kinds, a tuple of texts; it has {name!r}, {kinds!r}"
        )
    if missing := getattr(cls, "__abstractmethods__", ()):
        raise ValueError(
            f"{cls.__module__}: the measure '{name}' does not define {', '.join(sorted(missing))}"
        )
    other = _MEASURES.setdefault(cls.name, cls)
    if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(
            f"{cls.__module__}: the measure '{cls.name}' already exists in {other.__module__}; choose another name"
        )
    _MEASURES[cls.name] = cls
    return cls


def all_measures() -> dict[str, type[Measure]]:
    """Every registered measure by name, without those of files whose import failed later on (zoo.registry)."""
    return {name: cls for name, cls in _MEASURES.items() if not is_left_out(cls.__module__)}


def correct_averages(rows: list[Row]) -> list[Row]:
    """Rows averaged over several passes as one pass over all their tokens would have given them."""
    for cls in all_measures().values():
        rows = cls.correct_averages(rows)
    return rows


# Numbers per query, [B, H, T], as rows: their mean, and by the position of the query.


def mean_over_queries(
    event: ProbeEvent, measure: str, values: Tensor, since: int = 0, **bucket
) -> Iterator[Row]:
    """One row per head: the mean of values [B, H, T] over the queries t ≥ since; none if there is no such query."""
    kept = values[..., since:]
    if kept.shape[-1]:
        yield from by_head(event, measure, kept.mean((0, 2)), kept.shape[0] * kept.shape[2], **bucket)


def by_position(event: ProbeEvent, measure: str, values: Tensor, since: int = 0) -> Iterator[Row]:
    """Rows of the mean of values [B, H, T] in every bucket of positions, queries t ≥ since only."""
    for start, end in buckets(values.shape[-1]):
        place = {"axis": "position", "start": start, "end": end}
        yield from mean_over_queries(event, measure, values[..., :end], max(start, since), **place)


# The rank of factorised streams that keeps a given share of their energy.


def smallest_rank(rows: Iterable[Row], energy: float) -> tuple[int, int] | None:
    """(r, n): the smallest r whose r leading directions hold `energy` between all layers, and the streams there are.

    rows: a probe's, such as those of `zoo.probes.probe_model`; energy: a share of Σ‖x‖², above 0 and at most 1. None
    where there is one stream, or one layer, or no row of stream_energy.

    The directions are each place's own, a bound from above: U of factorised streams is one basis for all layers, whose
    first column is the mean stream.
    """
    between = [
        r for r in rows if r.measure == "stream_energy" and r.part == "mixer" and r.layer
    ]  # a layer's input; the first one's is the embedding
    worst: dict[int, float] = {}
    for row in between:
        worst[int(row.end)] = min(row.value, worst.get(int(row.end), 1.0))
    if len(worst) < 2:
        return None
    n = max(worst)
    return next((rank for rank in sorted(worst) if worst[rank] >= energy), n), n
