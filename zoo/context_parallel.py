"""All-gather context parallelism: a sequence's contiguous shards on the ranks of a process group.

Four exchanges, each with its backward: `gather` keys along time, `halo` of a convolution, `fold` of recurrent states
along the ranks, `swap` of time for heads; and `total`, a sum over ranks for losses. Mixers ask the context for what is
made of them (`operations`), which is nothing but the operation itself where `ctx.shard` is None.

Every rank computes the same loss from totals and runs its own backward; gradients of parameters are then added up
over ranks (`add_gradients`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import without_autocast
from zoo.errors import UserError

if TYPE_CHECKING:
    from zoo.context import Context


# A rank's shard of a batch: which tokens are its own, and the pieces of documents that it holds.


class Piece(NamedTuple):
    """Queries of a shard, and all keys that they may see, the last of which is the last query's own.

    queries     places in the shard
    keys        places in the whole batch's axis of time
    cu_seqlens  int32 [n+1], n whole documents, which queries and keys then both are; None: one sequence a row
    share       of the whole batch's mean over sequences of the mean over tokens
    """

    queries: slice
    keys: slice
    cu_seqlens: Tensor | None
    share: float


@dataclasses.dataclass(frozen=True)
class Shard:
    """Tokens [start, stop) of every row of the batch, which this rank of `group` holds; all shards are of one length.

    whole       the context of the whole batch
    begins      where the sequence of the first own token begins, on the whole axis
    last        where the part of the last own sequence begins, in the shard
    cu_seqlens  int32 [n+1], boundaries of the own parts of the n documents that the shard touches, or None
    pieces      the shard's queries in order: the rest of a document begun before, whole documents, the start of one
    """

    group: Any
    rank: int
    size: int
    start: int
    stop: int
    whole: Context
    begins: int
    last: int
    cu_seqlens: Tensor | None
    pieces: tuple[Piece, ...]

    @staticmethod
    def of(whole: Context, group: Any = None) -> Shard:
        """This rank's shard of a batch; group: None for all processes. Raises UserError where it cannot be cut."""
        if not (dist.is_available() and dist.is_initialized()):
            raise UserError(
                "context parallelism needs a process group: start with torchrun and call "
                "torch.distributed.init_process_group first"
            )
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        time = whole.positions.shape[1]
        if time % size:
            raise UserError(
                f"{time} tokens cannot be cut into {size} equal shards; use a length divisible by {size}"
            )
        if whole.probe is not None:
            raise UserError("a probe needs whole sequences; probe without context parallelism")
        length = time // size
        start, stop = rank * length, (rank + 1) * length
        if whole.cu_seqlens is None:
            piece = Piece(slice(0, length), slice(0, stop), None, 1 / size)
            return Shard(group, rank, size, start, stop, whole, 0, 0, None, (piece,))
        ends = whole.cu_seqlens.tolist()
        local_ends = [0, *(end - start for end in ends if start < end < stop), length]
        local = whole.cu_seqlens.new_tensor(local_ends)
        begins = max(end for end in ends if end <= start)
        pieces = tuple(_pieces(ends, start, stop, whole.cu_seqlens))
        return Shard(group, rank, size, start, stop, whole, begins, local_ends[-2], local, pieces)

    @property
    def length(self) -> int:
        """Tokens of the shard."""
        return self.stop - self.start

    @property
    def continues(self) -> bool:
        """Return whether the first own token's sequence began on a rank before."""
        return self.begins < self.start

    def check(self, tokens: Tensor) -> None:
        """Raise UserError unless tokens [B, T/N] are as many as the shard's."""
        wanted = (self.whole.positions.shape[0], self.length)
        if tokens.shape != wanted:
            raise UserError(
                f"rank {self.rank} of {self.size} needs its own tokens, of shape {wanted}, not {tuple(tokens.shape)}; "
                "give the model ctx.shard.own(tokens)"
            )

    def own(self, x: Tensor) -> Tensor:
        """The own part of x [B, T, ...], a view [B, T/N, ...]."""
        return x[:, self.start : self.stop]

    def for_each(self, first: Tensor) -> Tensor:
        """A state of every sequence in the shard from that of the first, [B, ...]: zeros for documents begun here."""
        if self.cu_seqlens is None:
            return first
        others = first.new_zeros(len(self.cu_seqlens) - 2, *first.shape[1:])
        return torch.cat([first, others])


def _pieces(ends: list[int], start: int, stop: int, like: Tensor) -> Iterator[Piece]:
    """The pieces of tokens [start, stop) of packed documents with these boundaries."""
    count = len(ends) - 1
    documents = [(a, b) for a, b in itertools.pairwise(ends) if b > start and a < stop]
    for complete, run in itertools.groupby(documents, lambda d: start <= d[0] and d[1] <= stop):
        run = list(run)
        if not complete:
            yield from (_part(a, b, start, stop, count) for a, b in run)
            continue
        first, last = run[0][0], run[-1][1]
        cu_seqlens = like.new_tensor([0, *(b - first for _, b in run)])
        share = len(run) / count
        yield Piece(slice(first - start, last - start), slice(first, last), cu_seqlens, share)


def _part(a: int, b: int, start: int, stop: int, documents: int) -> Piece:
    """The part in [start, stop) of a document [a, b) that goes beyond it."""
    first, last = max(a, start), min(b, stop)
    return Piece(
        slice(first - start, last - start), slice(a, last), None, (last - first) / ((b - a) * documents)
    )


# The exchange `gather`: every rank gets the keys of all tokens up to its own last one.


def gather(x: Tensor, shard: Shard, *, whole: bool = False) -> Tensor:
    """Concatenate shards along time.

        forward     y^(r) = [x^(0), …, x^(r)], or with `whole` [x^(0), …, x^(N−1)]       all-gather
        backward    x̄^(s) = Σ_r ȳ^(r)_s over the ranks r that read shard s               reduce-scatter

    x [B, t, ...], t tokens of this rank -> [B, (r+1)·t, ...], or [B, N·t, ...]; any dtype, gradients of which are added
    in that dtype. Bytes that a rank receives: (N − 1)·x in either direction.

    All ranks have to reach the backward, or those that do would wait: a rank may not drop y.
    """
    return _Gather.apply(x, shard, shard.size if whole else shard.rank + 1)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, shard: Shard, kept: int) -> Tensor:
        ctx.shard, ctx.length = shard, x.shape[1]
        x = x.contiguous()
        if not x.numel():  # MLA's rotary keys where it has none: nothing to send
            return x.new_empty(x.shape[0], kept * x.shape[1], *x.shape[2:])
        parts = [torch.empty_like(x) for _ in range(shard.size)]
        dist.all_gather(parts, x, group=shard.group)
        return torch.cat(parts[:kept], 1)

    @staticmethod
    def backward(ctx, grad: Tensor):
        shard = ctx.shard
        parts = [part.contiguous() for part in grad.split(ctx.length, 1)]
        parts += [torch.zeros_like(parts[0]) for _ in range(shard.size - len(parts))]
        out = torch.empty_like(parts[0])
        if out.numel():
            dist.reduce_scatter(out, parts, group=shard.group)
        return out, None, None


# The exchange `fold`: linear recurrences composed along the ranks, so that each starts from its right state.


def fold(transition: Tensor, increment: Tensor, shard: Shard) -> Tensor:
    """The state before a shard's first token, of the sequence that this token belongs to.

        forward     S^(r) = A^(r−1)·S^(r−1) + B^(r−1),  S = 0 where the sequence begins      all-gather of A and B
        backward    reduce-scatter

    increment B [B, ..., K, V]: what the shard's last sequence adds to a state, starting from zeros; transition A
    [B, ..., K, K], or [B, ..., K, 1] for decays alone (then A ⊙ S): what it makes of the state before it, 0 where that
    sequence begins in the shard. Returns [B, ..., K, V]. Bytes that a rank receives: (N − 1)·(A and B), whatever T is.
    """
    split = (transition.shape[-1], increment.shape[-1])
    gathered = gather(torch.cat([transition, increment], -1).unsqueeze(1), shard)
    # Zeros that hang on the gather: every rank has to reach its backward.
    state = gathered[:, :0].sum(1).split(split, -1)[1]
    with without_autocast(state):
        for rank in range(shard.begins // shard.length, shard.rank):
            a, b = gathered[:, rank].split(split, -1)
            state = (a * state if split[0] == 1 else a @ state) + b
    return state


def last_sequence(shard: Shard) -> slice:
    """Places in the shard of the last sequence's tokens: those that the next rank's state comes from."""
    return slice(shard.last, shard.length)


def sequence_spans_shard(shard: Shard) -> bool:
    """Return whether the shard's last sequence began before the shard, so that its state passes through."""
    return shard.continues and shard.last == 0


# The exchange `halo`: the last inputs of the rank before, which a causal convolution reads.


def halo(last: Tensor, shard: Shard) -> Tensor:
    """Pass the last tokens of every shard to the next rank.

        forward     y^(r) = last^(r−1), zeros for rank 0         send to r + 1
        backward    l̄ast^(r) = ȳ^(r+1), zeros for the last       send to r − 1

    last [B, k, D] -> [B, k, D]. Bytes that a rank receives: those of `last`.
    """
    return _Halo.apply(last, shard)


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, last: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return _shift(last, shard, 1)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _shift(grad, ctx.shard, -1), None


def _shift(x: Tensor, shard: Shard, by: int) -> Tensor:
    """Send x to rank r + by and return what rank r − by sent; zeros where there is no such rank."""
    sent, arrived, transfers = x.contiguous(), torch.zeros_like(x, memory_format=torch.contiguous_format), []
    to, source = shard.rank + by, shard.rank - by
    if 0 <= to < shard.size:
        transfers.append(dist.P2POp(dist.isend, sent, group=shard.group, group_peer=to))
    if 0 <= source < shard.size:
        transfers.append(dist.P2POp(dist.irecv, arrived, group=shard.group, group_peer=source))
    for transfer in dist.batch_isend_irecv(transfers) if transfers else ():
        transfer.wait()
    return arrived


# Sums over ranks: losses and their parts, with which every rank computes alike, and gradients.


def total(x: Tensor, shard: Shard) -> Tensor:
    """Return the sum of x [...] over the ranks, in x's shape.

        forward     y = Σ_r x^(r)       all-reduce
        backward    x̄^(r) = ȳ           nothing to exchange: every rank computes the same loss from y, and so has ȳ

    x of any shape and dtype, the same on all ranks. What comes after may hold no parameters: every rank would count
    their gradients once.
    """
    return _Total.apply(x, shard)


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, shard: Shard) -> Tensor:
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y, group=shard.group)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):
        return grad, None


@torch.no_grad()
def add_gradients(parameters: Iterable[Tensor], shard: Shard) -> None:
    """Add the parameters' gradients, of any shapes [...], up over ranks, in place, in one all-reduce for each dtype.

    Every rank's backward holds its own tokens' part of each gradient. A parameter without a gradient on any rank keeps
    none: an optimiser would else decay it.
    """
    parameters = [p for p in parameters if p.requires_grad]
    if not parameters:
        return
    present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
    present = present.to(parameters[0].device)
    dist.all_reduce(present, group=shard.group)
    parameters = [p for p, ranks in zip(parameters, present.tolist(), strict=True) if ranks]
    for dtype in {p.dtype: None for p in parameters}:
        alike = [p for p in parameters if p.dtype == dtype]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in alike]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=shard.group)
        for p, part in zip(alike, flat.split([p.numel() for p in alike]), strict=True):
            p.grad = part.view_as(p)


# The exchange `swap`: all time of some heads in place of some time of all heads.

TIME, HEADS = 1, 2
"""Axes of [B, T, H, ...]."""


def to_heads(x: Tensor, shard: Shard) -> Tensor:
    """Swap time for heads.

        forward     y^(r) = [x^(0)_{heads of r}, …, x^(N−1)_{heads of r}] along time      all-to-all
        backward    the same with time and heads exchanged: `to_time`

    x [B, t, H, ...], N divides H -> [B, N·t, H/N, ...]: rank r gets heads [r·H/N, (r+1)·H/N). Any dtype. Bytes that a
    rank receives: (N − 1)/N·x in either direction.
    """
    return _Swap.apply(x, HEADS, TIME, shard)


def to_time(x: Tensor, shard: Shard) -> Tensor:
    """Undo `to_heads`: [B, N·t, H/N, ...] -> [B, t, H, ...]."""
    return _Swap.apply(x, TIME, HEADS, shard)


def _exchange(x: Tensor, given: int, taken: int, shard: Shard) -> Tensor:
    """Cut x into N parts along axis `given`, send part r to rank r, join what arrives along axis `taken`."""
    parts = torch.stack(x.chunk(shard.size, given))
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts, group=shard.group)
    return torch.cat(arrived.unbind(), taken)


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, given: int, taken: int, shard: Shard) -> Tensor:
        ctx.back = taken, given, shard
        return _exchange(x, given, taken, shard)

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _exchange(grad, *ctx.back), None, None, None


# Operations across tokens, computed on a shard; mixers ask `Context` for them, which has the shapes.
#
# Queries are a rank's own, keys all that came before (`by_keys`: attention, selection). A head may need all time at
# once (`by_heads`: paths, timelines). A convolution reads the last inputs of the rank before (`inputs_before`), a
# recurrence the state after them (`delta_state_before`, `mesa_state_before`). What knows nothing of shards computes
# the `whole`.

Losses = dict[str, Tensor]


def by_keys(
    read: Callable[..., tuple[Tensor, Losses]],
    queries: Sequence[Tensor | None],
    keys: Sequence[Tensor],
    shard: Shard,
) -> tuple[Tensor, Losses]:
    """`Context.by_keys_with_losses`: keys are gathered once, then `read` is called for each of the shard's pieces.

    queries, keys: the shard's own tokens, [B, t, ...] -> o [B, t, ...] and losses [] by name.
    """
    gathered = [gather(x, shard) for x in keys]
    outputs, losses = [], {}
    for piece in shard.pieces:
        part = (None if x is None else x[:, piece.queries] for x in queries)
        o, partial = read(*part, *(x[:, piece.keys] for x in gathered), cu_seqlens=piece.cu_seqlens)
        outputs.append(o)
        for name, loss in partial.items():
            losses[name] = losses.get(name, 0) + piece.share * loss
    return torch.cat(outputs, 1), {name: total(loss, shard) for name, loss in losses.items()}


def by_heads(read: Callable[..., Tensor], inputs: Sequence[Tensor | None], shard: Shard) -> Tensor:
    """`Context.by_heads`: time is swapped for heads, and back.

    Where N does not divide Hkv, KV heads are repeated for all heads; where it does not divide H, heads of zeros fill up
    the last ranks, whose results are dropped.

    inputs: the shard's own tokens, [B, t, H or Hkv, ...] or None -> o [B, t, H, ...].
    """
    heads = max(x.shape[2] for x in inputs if x is not None)
    swapped = (None if x is None else to_heads(_divisible(x, heads, shard.size), shard) for x in inputs)
    o = read(*swapped, cu_seqlens=shard.whole.cu_seqlens)
    return to_time(o, shard)[:, :, :heads]


def _divisible(x: Tensor, heads: int, ranks: int) -> Tensor:
    """x [B, T, Hkv, ...] with a number of heads that the ranks divide, in the order of its `heads` query heads."""
    if x.shape[2] % ranks == 0 and heads % ranks == 0:
        return x
    x = x.repeat_interleave(heads // x.shape[2], 2)
    return F.pad(x, (*(0, 0) * (x.dim() - 3), 0, -heads % ranks))


def inputs_before(x: Tensor, count: int, shard: Shard) -> Tensor:
    """`Context.inputs_before`: the last inputs of the rank before. Raises UserError for a shard of fewer tokens.

    x [B, t, D] -> [n, D, count], n the sequences that a shard holds part of.
    """
    if shard.length < count:
        raise UserError(
            f"a convolution over {count + 1} tokens needs shards of at least {count} tokens, not {shard.length}; "
            f"use fewer than {shard.size} ranks"
        )
    before = halo(x[:, -count:], shard)
    place = torch.arange(shard.start - count, shard.start, device=x.device)
    before = torch.where((place >= shard.begins)[:, None], before, 0)
    return shard.for_each(before.transpose(1, 2))


def delta_state_before(operation: Callable[..., tuple], inputs: tuple, shard: Shard) -> Tensor:
    """`Context.delta_state_before`: linearity gives transition and increment of a shard in one run.

    It runs over values with K zeros behind them, from the state [0 | I], and ends with [B | A].
    """
    part = last_sequence(shard)
    q, k, v, *more = (x[:, part] for x in inputs)
    width = k.shape[-1]
    wide = torch.promote_types(v.dtype, torch.float32)
    start = v.new_zeros(v.shape[0], *v.shape[2:-1], width, v.shape[-1] + width, dtype=wide)
    if sequence_spans_shard(shard):
        start[..., v.shape[-1] :] = torch.eye(width, dtype=wide, device=v.device)
    _, end = operation(q, k, F.pad(v, (0, width)), *more, initial_state=start, output_final_state=True)
    increment, transition = end.split([v.shape[-1], width], -1)
    return shard.for_each(fold(transition, increment, shard))


def mesa_state_before(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """`Context.mesa_state_before`.

    Nothing has to be solved for states: with γ_t = exp g_t a shard of tokens 1 … t makes

        H ← (Π_s γ_s)·H + Σ_s (β_s·Π_{r>s} γ_r)·k_s·k_sᵀ        G likewise with k_s·v_sᵀ

    k [B, t, H, K], v [B, t, H, V], g, beta [B, t, H] -> (H [n, H, K, K], G [n, H, K, V]) in at least fp32.
    """
    wide = torch.promote_types(k.dtype, torch.float32)
    k, v, g, beta = (x[:, last_sequence(shard)].to(wide) for x in (k, v, g, beta))
    since = g.flip(1).cumsum(1).flip(1) - g  # Σ_{r>s} g_r, summed from the end: exact where it matters
    weights = beta * since.exp()
    with without_autocast(k):
        increment = torch.einsum("bthk,bthv->bhkv", k * weights.unsqueeze(-1), torch.cat([k, v], -1))
    passed = g.sum(1).exp() if sequence_spans_shard(shard) else torch.zeros_like(g[:, 0])
    state = fold(passed[..., None, None].expand(*increment.shape[:-1], 1), increment, shard)
    return tuple(shard.for_each(x) for x in state.split([k.shape[-1], v.shape[-1]], -1))


def whole(mixer: Callable, x: Tensor, ctx: Context) -> tuple[Tensor, dict[str, Tensor]]:
    """The own part of what a mixer makes of the whole batch: x [B, t, D] -> (y [B, t, D], auxiliary losses).

    Right for every mixer, and no faster than one device: N times the work, and the memory of whole sequences in this
    mixer. Losses are computed N times, too, so that each rank passes back an N-th of their gradient.
    """
    shard = ctx.shard
    y, aux = mixer(gather(x, shard, whole=True), shard.whole)
    return shard.own(y), {name: total(loss / shard.size, shard) for name, loss in aux.items()}


__all__ = ["Shard", "add_gradients", "total", "whole"]
