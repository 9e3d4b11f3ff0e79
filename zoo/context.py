"""The context of a forward pass: facts about its tokens that a layer may use besides the activations.

Positions and sequence boundaries are data, so that packed and separate sequences give the same results; noise is a
function of (seed, step) through per-sequence keys, so that a resumed or re-batched run draws the same noise. What a
mixer reads across tokens it asks the context for, which exchanges with other ranks where a sequence lies on several.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo import context_parallel
from zoo.context_parallel import Shard, total

if TYPE_CHECKING:
    from zoo.probes.events import Probe

Tensors = tuple[Tensor | None, ...]
Losses = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Context:
    """Facts about the tokens of one forward pass.

    positions:  int64 [B, T], a token's position in its own sequence
    cu_seqlens: int32 [N+1] boundaries of N packed sequences (then B = 1), or None
    sequences:  int64 [B, T], index of a token's sequence among all sequences of the batch
    n_sequences: how many sequences there are (B, or N when packed)
    noise_keys: int64 [B, T], the noise key of a token's sequence, or None for no noise
    probe:      receives the events of the blocks (zoo.probes), or None
    recompute:  decides which tensors the backward recomputes (zoo.recompute), or None
    repeated:   whether this pass recomputes an earlier one, so that blocks do not count its tokens twice
    shard:      the rank's part of the batch where a sequence lies on several (zoo.context_parallel), or None

    In a shard positions, sequences and noise_keys are those of the own tokens, numbered as in the whole batch, and
    cu_seqlens bound the own parts of the documents that the shard touches.
    """

    positions: Tensor
    sequences: Tensor
    n_sequences: int
    cu_seqlens: Tensor | None = None
    noise_keys: Tensor | None = None
    probe: Probe | None = None
    recompute: Any = None
    repeated: bool = False
    shard: Shard | None = None

    @staticmethod
    def of(
        tokens: Tensor,
        cu_seqlens: Tensor | None = None,
        noise_keys: Tensor | None = None,
        probe: Probe | None = None,
    ) -> Context:
        """The context of a batch of tokens [B, T].

        cu_seqlens: int32 [N+1] rising from 0 to T when B = 1 holds N packed sequences, none of them empty.
        noise_keys: int64 [B], or [N] when packed; None means no noise (routing without Gumbel noise).
        Raises ValueError with the shapes where they do not fit.
        """
        if tokens.dim() != 2:
            raise ValueError(f"tokens must be [batch, time], not {tuple(tokens.shape)}")
        batch, length = tokens.shape
        index = torch.arange(length, device=tokens.device)
        if cu_seqlens is None:
            positions = index.expand(batch, length)
            sequences = torch.arange(batch, device=tokens.device)[:, None].expand(batch, length)
            n_sequences = batch
        else:
            if batch != 1:
                raise ValueError(
                    f"packed input needs batch size 1, not tokens of shape {tuple(tokens.shape)}"
                )
            _check_boundaries(cu_seqlens, length)
            sequences = (torch.searchsorted(cu_seqlens, index, right=True) - 1)[None]
            positions = (index - cu_seqlens[sequences[0]].long())[None]
            n_sequences = cu_seqlens.shape[0] - 1
        if noise_keys is not None:
            if noise_keys.shape != (n_sequences,):
                raise ValueError(
                    f"noise_keys must be [{n_sequences}], one per sequence, not {tuple(noise_keys.shape)}"
                )
            noise_keys = noise_keys[sequences]
        return Context(positions, sequences, n_sequences, cu_seqlens, noise_keys, probe)

    def cut(self, group: Any = None) -> Context:
        """This context of a whole batch -> that of the shard which this process holds as a rank of a process group.

        group: of torch.distributed; None for all processes. Raises UserError where the batch cannot be cut.
        """
        shard = Shard.of(self, group)
        return dataclasses.replace(
            self,
            positions=shard.own(self.positions),
            sequences=shard.own(self.sequences),
            noise_keys=None if self.noise_keys is None else shard.own(self.noise_keys),
            cu_seqlens=shard.cu_seqlens,
            shard=shard,
        )

    def at(self, **place: int | str) -> Context:
        """This context with its probe at a place in the model (layer, part, block); itself without a probe."""
        return self if self.probe is None else dataclasses.replace(self, probe=self.probe.at(**place))

    def record(self, kind: str, make: Callable[[], dict[str, Tensor]]) -> None:
        """Record what `make` returns as a probe event of this kind, if there is a probe that takes the kind.

        Without a probe `make` is never called, and a compiled graph is as if the line were not there.

        make: returns tensors by name, of the shapes that the kind was registered with ([B, T, ...] where nothing else
        is said).
        """
        if self.probe is not None:
            self.probe.record(kind, make)

    def saved(self, function: Callable[..., Any], u: Tensor) -> Any:
        """`function(u, ctx)` of a mixer or channel mixer, u [B, T, D]; never recomputed, where its surroundings are.

        The tensors of its backward and its output are saved. Returns what the function does.
        """
        return function(u, self) if self.recompute is None else self.recompute.run_saved(function, u, self)

    def recomputed(
        self, function: Callable[..., Sequence[Tensor]], x: Tensor, *more: Any
    ) -> Sequence[Tensor]:
        """`function(x, *more)`, tensors that a mixer computes at little cost: recomputed where its surroundings are.

        x: its input [B, T, D], more: anything else. Returns what the function does.
        """
        if self.recompute is None:
            return function(x, *more)
        return self.recompute.run_recomputed(function, x, *more)

    def by_keys(self, read: Callable[..., Tensor], queries: Tensors, keys: Tensors) -> Tensor:
        """Compute what queries read from keys, `read(*queries, *keys, cu_seqlens=...)`; in a shard from gathered keys.

        queries, keys: tensors [B, T, ...], None among the queries is passed on; read returns o [B, Tq, ...], and has to
        align a shorter q with the end of k where cu_seqlens is None. Keys are gathered once; then `read` is called for
        each of the shard's pieces, at most three, so that no operation has to know a packed q shorter than its k.
        """
        if self.shard is None:
            return read(*queries, *keys, cu_seqlens=self.cu_seqlens)
        return context_parallel.by_keys(lambda *x, **o: (read(*x, **o), {}), queries, keys, self.shard)[0]

    def by_keys_with_losses(
        self, read: Callable[..., tuple[Tensor, Losses]], queries: Tensors, keys: Tensors
    ) -> tuple[Tensor, Losses]:
        """`by_keys` of a `read` that also returns losses, means over sequences of means over their queries.

        In a shard they are those of the whole batch: Σ over all ranks' pieces of (the piece's share)·(its loss).

        read returns o [B, Tq, ...] and losses by name, scalars []; all else as in `by_keys`.
        """
        if self.shard is None:
            return read(*queries, *keys, cu_seqlens=self.cu_seqlens)
        return context_parallel.by_keys(read, queries, keys, self.shard)

    def by_heads(self, read: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
        """`read(*inputs, cu_seqlens=...)`; in a shard of some heads over the whole batch's time.

        inputs: tensors [B, T, H, ...], or [B, T, Hkv, ...] with Hkv dividing the most heads H of any, or None; head h
        reads KV head ⌊h·Hkv/H⌋. read returns o [B, T, H, ...], a head of which depends on its own inputs alone.
        """
        if self.shard is None:
            return read(*inputs, cu_seqlens=self.cu_seqlens)
        return context_parallel.by_heads(read, inputs, self.shard)

    def inputs_before(self, x: Tensor, count: int) -> Tensor | None:
        """The `count` inputs before each sequence of a shard: x [B, t, D] -> [n, D, count], oldest first; else None.

        Zeros where the sequence had not begun. As `state` of `kernels.short_conv`. Raises UserError for a shard of
        fewer tokens than that.
        """
        return (
            None if self.shard is None or not count else context_parallel.inputs_before(x, count, self.shard)
        )

    def delta_state_before(self, operation: Callable[..., tuple], inputs: tuple) -> Tensor | None:
        """The states [n, ..., K, V] before the sequences of a shard, as `initial_state`; None where unsharded.

        operation: linear in its state and values, such as `kernels.delta_rule` and `kernels.memory_mixture`; inputs:
        its tensors [B, t, ...], (q, k, v, ...) with v [B, t, ..., V].
        """
        return (
            None if self.shard is None else context_parallel.delta_state_before(operation, inputs, self.shard)
        )

    def mesa_state_before(
        self, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """(H [n, H, K, K], G [n, H, K, V]) before the sequences of a shard, as `initial_state`; None where unsharded.

        k [B, t, H, K], v [B, t, H, V], g and beta [B, t, H] as `kernels.mesa` takes them; at least fp32.
        """
        return None if self.shard is None else context_parallel.mesa_state_before(k, v, g, beta, self.shard)

    def target_mean(
        self, nats: Tensor, targets: Tensor, ignore_index: int = -100, count: Tensor | None = None
    ) -> Tensor:
        """The mean [] over all ranks' targets of the sum [] over the rank's own, those equal to ignore_index left out.

        targets int64 [B, t]: the rank's own. count: int64 [], what the sum over targets is divided by in place of their
        number, such as that of all batches which a step accumulates.
        """
        if self.shard is not None:
            nats = total(nats, self.shard)
        if count is None:
            count = (targets != ignore_index).sum()
            count = count if self.shard is None else total(count, self.shard)
        return nats / count

    def sequence_mean(self, x: Tensor) -> Tensor:
        """Mean over the tokens of each sequence, all its shards: x [B, T, ...] -> [n_sequences, ...]."""
        if self.cu_seqlens is None:
            if self.shard is None:
                return x.mean(1)
            return total(x.sum(1), self.shard) / self.shard.whole.positions.shape[1]
        sums = x.new_zeros(self.n_sequences, *x.shape[2:]).index_add(0, self.sequences[0], x[0])
        cu_seqlens = self.cu_seqlens
        if self.shard is not None:
            sums, cu_seqlens = total(sums, self.shard), self.shard.whole.cu_seqlens
        lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).to(x.dtype)
        return sums / lengths.view(-1, *([1] * (x.dim() - 2)))


def _check_boundaries(cu_seqlens: Tensor, length: int) -> None:
    """Raise ValueError unless sequences fill the tokens; an empty one would have no mean. Values on CPUs only."""
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype != torch.int32:
        raise ValueError(f"cu_seqlens must be int32 [N+1], not {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}")
    # Reading the values on a GPU would wait for it, and a trace has none.
    if cu_seqlens.device.type == "cpu" and not torch.compiler.is_compiling():
        ends = cu_seqlens.tolist()
        if ends[0] != 0 or ends[-1] != length or any(a >= b for a, b in itertools.pairwise(ends)):
            raise ValueError(
                f"cu_seqlens must rise from 0 to {length} tokens without empty sequences, got {ends}"
            )
