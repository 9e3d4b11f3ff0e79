"""Tuples of the tensors that the steps of the chunked delta rule pass on; the steps' order is in triton_ops.py."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Inputs(NamedTuple):
    """The contiguous inputs of a call.

    q, k  [B, T, HQ, K], [B, T, HK, K]; v [B, T, HV, V]; beta [B, T, H]: H is a multiple of HQ, HK and HV
    g     [B, T, H], one gate for all channels of a head, or [B, T, H, K]
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    @property
    def heads(self) -> int:
        """The number of heads of g and beta, H."""
        return self.beta.shape[2]

    @property
    def shared(self) -> bool:
        """True where the channels of a head share one gate."""
        return self.g.dim() == 3

    @property
    def head_counts(self) -> tuple[int, int, int, int]:
        """The numbers of heads H, HQ, HK, HV."""
        return self.heads, self.q.shape[2], self.k.shape[2], self.v.shape[2]

    @property
    def widths(self) -> dict[str, int]:
        """K and V by name, as kernels take them."""
        return {"K": self.q.shape[3], "V": self.v.shape[3]}


class ChunkOperands(NamedTuple):
    """The operands of the inter-chunk recurrence, in the products' dtype, decays in fp32.

    queries, keys       Q̄ and K̃ [B·T, H, K]; where a head's channels share one gate, q and k as they are given, and
    from_start, to_end  exp(G) and exp(G_last − G) [B·T, H], else None
    reads, values       W [B·T, H, K] and U [B·T, H, V]
    whole               exp(G_last), the decay of a whole chunk: [chunks, H, K or 1]
    """

    queries: Tensor
    keys: Tensor
    from_start: Tensor | None
    to_end: Tensor | None
    reads: Tensor
    values: Tensor
    whole: Tensor

    @property
    def widths(self) -> dict[str, int]:
        """K and V by name, as kernels take them."""
        return {"K": self.reads.shape[-1], "V": self.values.shape[-1]}

    @property
    def groups(self) -> dict[str, int]:
        """The number of heads for one of queries, GQ, and of keys, GK, by name, as kernels take them."""
        heads = self.reads.shape[2]
        return {"GQ": heads // self.queries.shape[2], "GK": heads // self.keys.shape[2]}

    @property
    def shared(self) -> bool:
        """True where the channels of a head share one gate."""
        return self.from_start is not None


class ChunkStates(NamedTuple):
    """S₀ [chunks, H, K, V], the states that chunks start from, and E [B·T, H, V]; in the inputs' dtype."""

    states: Tensor
    errors: Tensor


class StateGradients(NamedTuple):
    """dS [chunks, H, K, V] of the states after chunks, and dF [B·T, H, V]; in the inputs' dtype."""

    d_states: Tensor
    d_writes: Tensor


class ValueGradients(NamedTuple):
    """dV [B, T, H, V] of every head, dβ [B, T, H], and dP, dA [B·T, H, C]."""

    d_v: Tensor
    d_beta: Tensor
    d_p: Tensor
    d_a: Tensor
