"""The lightning indexer's scores, the order in which they rank, and how many keys a query selects."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import check_packed
from kernels.indices import Block

SCORES = ("sigmoid", "relu")
"""Activations of the heads' logits."""

TIE = 2.0**-40
"""The steps in which shares I_ts/Σ_j w_tj are compared, after they are rounded to fp32."""

LONGEST = 1 << 22
"""Key positions that a rank has room for."""

FIRST = 3 << 61
"""A rank above all others, of which a whole share has the highest: 2^40 steps, rounded up in fp32, times LONGEST."""


def index_scores(q: Tensor, k: Tensor, w: Tensor, bias: Tensor, scores: str = "sigmoid") -> Tensor:
    """The scores I_ts = Σ_j w_tj·σ(q_tj·k_s/√d_I + b_j), differentiable; σ is the sigmoid or the ReLU.

    q [B, C, HI, DI], w [B, C, HI], bias [HI]; k [B, S, DI], or [B, C, S, DI] with keys of its own for every
    query. Returns [B, C, S].
    """
    activation = torch.sigmoid if scores == "sigmoid" else torch.relu
    return (w.unsqueeze(-1) * activation(index_logits(q, k, bias))).sum(2)


def index_scores_alike(q: Tensor, k: Tensor, w: Tensor, bias: Tensor, scores: str = "sigmoid") -> Tensor:
    """`index_scores` without gradient, in which equal keys get equal scores in fp32 wherever they stand.

    q [B, C, HI, DI], w [B, C, HI], bias [HI]; k [B, S, DI] or [B, C, S, DI] -> [B, C, S].
    """
    return weighted_sum(active_alike(q, k, bias, scores), w)


def active_alike(q: Tensor, k: Tensor, bias: Tensor, scores: str) -> Tensor:
    """σ of the heads' logits [B, C, HI, S], in which equal keys get equal numbers in fp32 wherever they stand.

    A matrix product rounds by an element's place in a tile, so it is summed in fp64 and then rounded: two sums that
    differ by 2^−52 fall on two sides of an fp32's edge once in 2^27 times. torch.sigmoid rounds the last few numbers
    of a tensor differently from the others; exp, addition and multiplication do not.
    """
    heads = _similar(q.double() * q.shape[-1] ** -0.5, k.double()).to(q.dtype).add_(bias[:, None])
    return heads.neg_().exp_().add_(1).reciprocal_() if scores == "sigmoid" else heads.relu_()


def weighted_sum(active: Tensor, w: Tensor) -> Tensor:
    """Σ_j w_tj·active_tjs [B, C, S], head by head: a product of matrices would round by place."""
    heads = (active * w.unsqueeze(-1)).unbind(2)
    total = heads[0].clone()
    for head in heads[1:]:
        total += head
    return total


def newest_scores(q: Tensor, k: Tensor, w: Tensor, bias: Tensor, scores: str) -> Tensor:
    """`index_scores_alike` of one query, q [B, 1, HI, DI] -> [B, 1, S], in fp64 until the end: fewer operations."""
    queries = q[:, 0].double() * q.shape[-1] ** -0.5
    heads = torch.baddbmm(bias.double()[:, None], queries, k.double().mT)
    heads = heads.sigmoid_() if scores == "sigmoid" else heads.relu_()
    return torch.bmm(w.double(), heads).to(q.dtype)


def index_logits(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    """The heads' logits q_tj·k_s/√d_I + b_j, [B, C, HI, S]; arguments as in `index_scores`."""
    return _similar(q * q.shape[-1] ** -0.5, k) + bias[:, None]


def _similar(q: Tensor, k: Tensor) -> Tensor:
    if k.dim() == 4:
        return q @ k.transpose(-1, -2)
    return (q.flatten(1, 2) @ k.transpose(-1, -2)).unflatten(1, q.shape[1:3])


def ranks(scores: Tensor, w: Tensor, kind: str) -> Tensor:
    """Ranks int64 ≥ 0 [B, C, S], distinct for every key of a query: higher for a higher score, then a later key.

    scores [B, C, S], compared in fp32: those of a sigmoid as I_ts/Σ_j w_tj ∈ [0, 1] in steps of 2^−40, those of a
    ReLU by all but the last bit. A score that is NaN ranks above all that are numbers.
    """
    # The product drops the bits of _shares above those that count.
    steps = _shares(scores, w) if kind == "sigmoid" else _ordered_bits(scores)
    return steps.mul_(LONGEST).add_(torch.arange(scores.shape[-1], device=scores.device))


def best_first(rank: Tensor, block: Block) -> Tensor:
    """Ranks [B, C, S], changed in place: −1 for keys that a query does not see, FIRST for its own."""
    own = block.own.view(1, -1, 1).expand(rank.shape[0], -1, 1)
    # −1 has every bit set. A fill under a mask of booleans would take one number at a time.
    return rank.bitwise_or_(block.visible.to(torch.int64) - 1).scatter_(-1, own, FIRST)


def _shares(scores: Tensor, w: Tensor) -> Tensor:
    """I_ts/Σ_j w_tj in steps of 2^−40, int64: counted by the lowest 42 bits. NaN is 1¼, above all shares."""
    share = scores / w.sum(-1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
    # Around 1.5·2^52 an fp64 has steps of 1, and the lowest bits of its pattern count them.
    return share.float().double().nan_to_num_(1.25).mul_(1 / TIE).add_(1.5 * 2.0**52).view(torch.int64)


def _ordered_bits(scores: Tensor) -> Tensor:
    """Integers of 31 bits in the order of fp32 scores: the bits of the magnitude without the last, signed, plus 2³⁰.

    The highest of NaN.
    """
    bits = scores.to(torch.float32).view(torch.int32)
    size = (bits & 0x7FFFFFFF) >> 1
    size = torch.where(bits < 0, -size, size).masked_fill_(scores.isnan(), (1 << 30) - 1)
    return size.add_(1 << 30).to(torch.int64)


# One choice for a tile of queries, and keys in blocks.


def tile_starts(queries: int, keys: int, share: int, cu_seqlens: Tensor | None) -> Sequence[int]:
    """Positions of the first queries of all tiles of `share`, which are counted from each sequence's first token."""
    if cu_seqlens is None:
        return range(keys - queries, keys, share)
    bounds = cu_seqlens.tolist()
    return [t for begin, end in itertools.pairwise(bounds) for t in range(begin, end, share)]


def continued(choice: Tensor, first: Tensor, position: Tensor, share: int) -> Tensor:
    """What queries read by the choice of their tile's first one: {first + 1, …, t} and then the choice itself.

    choice int32 [B, C, n], −1 behind; first and position int64 [C]: of the tile's first query and of the query t.
    Returns int32 [B, C, n + share − 1], from the latest to the earliest, then −1.
    """
    width = choice.shape[-1]
    place = torch.arange(width + share - 1, device=choice.device) - (position - first)[:, None]
    older = choice.gather(-1, place.clamp(0, width - 1).expand(len(choice), -1, -1))
    # place −1 is the tile's second token, first + 1
    newer = (first[:, None] - place).to(choice.dtype)
    return torch.where(place < 0, newer, torch.where(place < width, older, -1))


def blocks_of_keys(block: Block, size: int) -> Tensor:
    """The places of keys in blocks of `size` of their own sequence, int64 [blocks + 1, size], rising.

    S where a block is short, and in the last row, which is no block.
    """
    place = torch.arange(len(block.starts), device=block.starts.device)
    number = place - block.starts
    row = (number % size == 0).cumsum(0) - 1
    rows = torch.full((int(row[-1]) + 2, size), len(place), device=place.device)
    rows[row, number % size] = place
    return rows


def variances(scores: Tensor, visible: Tensor, heads: int) -> Tensor:
    """Population variance of I_ts/H^I over the visible keys: scores [B, C, S], visible [C, S] -> [B, C]."""
    seen = visible.view(torch.uint8).to(scores.dtype)
    n = seen.sum(-1)
    share = scores / heads
    # Without their bits hidden scores are 0, also those that are NaN, which times 0 is NaN.
    bits = share.view(torch.int32 if share.dtype == torch.float32 else torch.int64)
    bits.bitwise_and_(visible.to(bits.dtype).neg_())
    centred = share.sub_((share.sum(-1) / n).unsqueeze(-1)).mul_(seen)
    return centred.square_().sum(-1) / n


def wide(*tensors: Tensor) -> list[Tensor]:
    """The tensors [...] in one dtype, fp32 or wider, in their shapes: in bf16 most scores would be ties."""
    dtype = torch.float32
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    return [x.to(dtype) for x in tensors]


def check_indexer(
    name: str,
    q: Tensor,
    k: Tensor,
    w: Tensor,
    bias: Tensor,
    cu_seqlens: Tensor | None = None,
    scores: str = "sigmoid",
) -> None:
    """Raise ValueError if q [B, Tq, HI, DI], k [B, Tk, DI], w [B, Tq, HI], bias [HI] do not fit, or for scores."""
    if scores not in SCORES:
        raise ValueError(f"{name}: scores must be one of {', '.join(SCORES)}, not {scores!r}")
    shapes = (
        f"q_idx {tuple(q.shape)}, k_idx {tuple(k.shape)}, w_idx {tuple(w.shape)}, bias {tuple(bias.shape)}"
    )
    wanted = "q_idx [B, Tq, HI, DI], k_idx [B, Tk, DI], w_idx [B, Tq, HI], bias [HI]"
    if (q.dim(), k.dim(), w.dim(), bias.dim()) != (4, 3, 3, 1):
        raise ValueError(f"{name} needs {wanted}, got {shapes}")
    fits = q.shape[0] == k.shape[0] and q.shape[3] == k.shape[2]
    if not fits or q.shape[:3] != w.shape or bias.shape != q.shape[2:3]:
        raise ValueError(f"{name}: batch, length, index heads or index width differ: {shapes}")
    if q.shape[1] > k.shape[1] or k.shape[1] > LONGEST:
        raise ValueError(f"{name} needs Tq ≤ Tk ≤ {LONGEST}, got {shapes}")
    if cu_seqlens is not None:
        check_packed(name, q, k, cu_seqlens)


# The number of keys that a query selects, adapted to the variance of its scores.

RULES = ("none", "seed", "inverse")


@dataclasses.dataclass(frozen=True)
class AdaptiveK:
    """A rule v -> k, for v the population variance of I_ts/H^I over the keys that query t sees (0 for one key).

        none     k = base
        seed     k = clip(base·(1 + beta·softplus(v)), least, most)       grows with v, from base·(1 + 0.69·beta)
        inverse  k = clip(base·√(reference/v), least, most)               fewer keys where scores discriminate

    rounded to the nearest integer; of a v that is NaN, seed and inverse give the most. For sigmoid scores 0 ≤ v ≤ ¼,
    of which `inverse` reaches both limits, and `reference` is made for them; for ReLU scores v has no bound, and any
    other rule needs a reference or beta of its own. Raises ValueError for an unknown rule and for sizes that are not
    1 ≤ least ≤ base ≤ most.
    """

    rule: str
    base: int
    least: int
    most: int
    beta: float = 1.0
    reference: float = 0.003

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"the rule of AdaptiveK must be one of {', '.join(RULES)}, not {self.rule!r}")
        if not 1 <= self.least <= self.base <= self.most:
            raise ValueError(
                f"AdaptiveK needs 1 ≤ least ≤ base ≤ most, got {self.least}, {self.base}, {self.most}"
            )

    @property
    def widest(self) -> int:
        """The largest k that the rule gives."""
        return self.base if self.rule == "none" else self.most

    def __call__(self, variance: Tensor) -> Tensor:
        """The number of keys k, int64 [...], for a variance [...] in at least fp32."""
        if self.rule == "none":
            return torch.full_like(variance, self.base, dtype=torch.int64)
        if self.rule == "seed":
            k = self.base * (1 + self.beta * F.softplus(variance))
        else:
            k = self.base * torch.sqrt(self.reference / variance)
        return k.clamp(self.least, self.most).round().nan_to_num(self.most).to(torch.int64)

    def of_number(self, variance: float) -> int:
        """The number of keys for one variance: a decoding step has one, and tensors of one number are slow."""
        k = float(self.base)
        if self.rule == "seed":
            k *= 1 + self.beta * (variance + math.log1p(math.exp(-variance)))  # softplus, of a number ≥ 0
        elif self.rule == "inverse":
            k = k * math.sqrt(self.reference / variance) if variance > 0 else math.inf
        return (
            self.base if self.rule == "none" else round(max(min(self.most, k), self.least))
        )  # of NaN the most
