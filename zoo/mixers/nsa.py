"""`N`: native sparse attention, which reads summaries of all blocks, a few blocks in full, and the last tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from zoo.context import Context
from zoo.errors import UserError
from zoo.interfaces import Aux, Dims, Mixer
from zoo.modules import (
    INIT_STD,
    KVCache,
    OutputProjection,
    are_plain,
    by_sequence,
    fp32_linear,
    joins,
    positions,
    project,
)
from zoo.modules.rotary import PartialRopeOptions, rotation
from zoo.options import added, at_least, default_kv_heads, head_width, kv_heads
from zoo.probes.events import record_branch_attention
from zoo.registry import register_mixer

# The compression: one summary for each block of tokens.


class Compress(nn.Module):
    """φ: x [..., l, K] -> W_2·SiLU(W_1·vec(x + E)) [..., K], hidden K, shared by the heads."""

    decays = ("positions",)

    def __init__(self, block_size: int, width: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(block_size, width))
        self.up = nn.Linear(block_size * width, width, bias=False)
        self.down = nn.Linear(width, width, bias=False)

    def init_weights(self, generator: torch.Generator) -> None:
        """Draw the positions E with std 0.02."""
        nn.init.normal_(self.positions, std=INIT_STD, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Blocks x [..., l, K] -> summaries [..., K]."""
        return self.down(F.silu(self.up((x + self.positions).flatten(-2))))


def compress_together(maps: Sequence[Compress], x: Tensor) -> tuple[Tensor, ...]:
    """Each φ of its own blocks x [n, ..., l, K] -> [..., K], n of them: a product for all, not one for each."""
    parts = zip(*((m.positions, m.up.weight, m.down.weight) for m in maps), strict=True)
    positions, up, down = map(torch.stack, parts)
    rows = (x + positions.view(len(x), *(1 for _ in x.shape[1:-2]), *positions.shape[1:])).flatten(-2)
    hidden = F.silu(rows.flatten(1, -2) @ up.mT)
    return (hidden @ down.mT).view(*x.shape[:-2], -1).unbind()


# The mixer.


@dataclass
class NSAConfig(PartialRopeOptions):
    """Options of native sparse attention; None scales with the model and its configured length T.

    n_heads: query heads H (None: the model's); n_kv_heads: heads of keys and values (None: a third of the query heads);
    head_width: K, width of a head (None: D/H); qkv_bias: biases of the projections to q, k and v; rope_base: base of
    rotary positions; select_size: l', tokens of a block that is read in full (None: √T, rounded down to a power of two,
    2 … 64); block_size: l, tokens of a compressed block (None: l'/2); stride: d, tokens from the start of a compressed
    block to that of the next (None: l'/4, at least 1); n_select: n, blocks that are read in full: the first, the
    query's own b and the one before it, and those that score highest (None: T/4 tokens, 4 … 16 blocks); window: w,
    tokens of the window, the current one included (None: T/8, at most 512).

    Rotary positions by the options of RopeOptions and rope_dim.

    From T = 4,096 these are the paper's 64, 32, 16, 16, 512; at T = 128 they are 8, 4, 2, 4, 16.
    """

    n_heads: int | None = None
    n_kv_heads: int | None = None
    rope_base: float = 1e4
    block_size: int | None = None
    stride: int | None = None
    select_size: int | None = None
    n_select: int | None = None
    window: int | None = None
    head_width: int | None = added(None, before=None)
    qkv_bias: bool = added(False, before=False)


@dataclass
class NSAState:
    """Summaries of all blocks; keys and values of the last l tokens before compression, of all tokens for the
    selection and of the last w for the window (keys of these two rotated)."""

    compressed: KVCache
    recent: KVCache
    selected: KVCache
    sliding: KVCache
    block_size: int
    stride: int

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.selected.batch

    @property
    def appended(self) -> int:
        """Tokens so far."""
        return self.selected.appended

    def nbytes(self) -> int:
        """Bytes in storage."""
        return sum(cache.nbytes() for cache in self._caches)

    def fill(self, tokens: int) -> None:
        """Fill the empty state as `tokens` tokens would, with rows of zeros."""
        self.compressed.fill(summaries(tokens, self.block_size, self.stride))
        for cache in self._caches[1:]:
            cache.fill(tokens)

    def select(self, index: Tensor) -> NSAState:
        """The state of the sequences index [n] alone."""
        return NSAState(*(cache.select(index) for cache in self._caches), self.block_size, self.stride)

    def join(self, states: Sequence[NSAState]) -> NSAState:
        """The state of the sequences of several states, this one among them, all of as many tokens."""
        caches = zip(*(state._caches for state in states), strict=True)
        joined = (cache.join(others) for cache, others in zip(self._caches, caches, strict=True))
        return NSAState(*joined, self.block_size, self.stride)

    @property
    def _caches(self) -> tuple[KVCache, ...]:
        return self.compressed, self.recent, self.selected, self.sliding


@register_mixer(
    "nsa",
    letter="N",
    config=NSAConfig,
    title="Native sparse attention",
    family="sparse attention",
    color="#332288",
    mask="blocks",
    source="Yuan et al. 2025, Native Sparse Attention (arXiv:2502.11089)",
    sketch="""
    x
    q | k, v: three
    all #2 | chosen #1 | last w #0
    gates
    y
    """,
)
class NSA(Mixer):
    """Grouped-query attention in three branches, each with keys and values of its own.

        q = x·W_q;  k^c, v^c = x·W_k^c, x·W_v^c     [B, T, H, K], [B, T, Hkv, K] for c in cmp, slc, win
        o^cmp: q_t over φ_k(k^cmp), φ_v(v^cmp) of the blocks [i·d, i·d + l) that end at t or before, without positions
        o^slc: RoPE(q_t) over the tokens s ≤ t of n blocks of l' tokens: {0, b − 1, b}, b = ⌊t/l'⌋, and those to
               which o^cmp attends most, summed over the heads of a group
        o^win: RoPE(q_t) over the last w tokens
        φ(x) = W_2·SiLU(W_1·vec(x + E))             x, E [l, K], hidden K; one for keys, one for values
        g = σ(x·W_g + b)                            [B, T, H, 3]
        y = (g_0·o^cmp + g_1·o^slc + g_2·o^win)·W_o

    o^cmp is 0 for a query before the first block's end. By option q, keys and values have biases. Work a token: T/d +
    n·l' + w scores a head. Decode state: keys and values of all tokens, of the last w and of the last l, and a summary
    every d tokens; a step reads the summaries, n blocks and the window.
    """

    state_options = ("head_width", "window")
    context_parallel = True

    def __init__(self, config: NSAConfig, dims: Dims) -> None:
        super().__init__()
        self.heads = dims.heads(config.n_heads)
        self.width = head_width(dims.d_model, self.heads, "n_heads", config.head_width)
        self.kv_heads = kv_heads(config.n_kv_heads, self.heads, "nsa", default=default_kv_heads(self.heads))
        self.sizes = sizes(config, dims.seq_len)
        self.rotate = rotation(config, "nsa", self.width, backend=dims.body_backend)
        self.backend = dims.backend
        inner, inner_kv = self.heads * self.width, self.kv_heads * self.width
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(dims.d_model, width, bias=config.qkv_bias)
            for width in (inner, 3 * inner_kv, 3 * inner_kv)
        )
        self.compress_k, self.compress_v = (Compress(self.sizes["block_size"], self.width) for _ in range(2))
        self.gate_proj = nn.Linear(dims.d_model, 3 * self.heads)
        self.o_proj = OutputProjection(inner, dims.d_model, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> tuple[Tensor, Aux]:
        """Whole sequences: x [B, T, D] -> (y [B, T, D], no losses)."""
        q, raw, selected, sliding = self._qkv(x, ctx.positions)

        def read(gates: Tensor, q: Tensor, turned: Tensor, *kv: Tensor, cu_seqlens: Tensor | None) -> Tensor:
            compressed = self._compressed(kv[:2], cu_seqlens)
            record_branch_attention(ctx, q, turned, (compressed[0], kv[2], kv[4]), gates, self.sizes)
            return self._attend(gates, (q, turned), compressed, kv[2:4], kv[4:], cu_seqlens)

        o = ctx.by_keys(read, (self._gates(x), *q), (*raw, *selected, *sliding))
        return self.o_proj(o.flatten(-2)), {}

    def init_state(self, batch_size, *, capacity=0, device=None, dtype=torch.float32):
        """Four empty caches with room for `capacity` tokens, those with a window for at most the window's."""
        length, stride, window = (self.sizes[key] for key in ("block_size", "stride", "window"))
        shape, options = (batch_size, self.kv_heads, self.width), {"device": device, "dtype": dtype}
        compressed = KVCache(*shape, capacity=summaries(capacity, length, stride), **options)
        windows = length, None, window
        caches = (KVCache(*shape, capacity=capacity, window=rows, **options) for rows in windows)
        return NSAState(compressed, *caches, length, stride)

    def extend(self, x: Tensor, state: NSAState) -> tuple[Tensor, NSAState]:
        """The next tokens: x [B, T, D] -> (y [B, T, D], the caches after them, with a summary of each whole block)."""
        q, *kv = self._qkv(x, positions(state, x.shape[1], x.device))
        pairs = (y.transpose(1, 2) for pair in kv for y in pair)
        return self.o_proj(by_sequence(self._read, state, self._gates(x), *q, *pairs).flatten(-2)), state

    def _read(self, state: NSAState, gates: Tensor, q: Tensor, turned: Tensor, *kv: Tensor) -> Tensor:
        """o [B, T, H, K] of the next tokens; kv: k, v [B, Hkv, T, K] of the three branches, which join the caches."""
        before = state.compressed.appended
        recent = state.recent.append(*kv[:2])
        seen = state.selected.append(*kv[2:4]), state.sliding.append(*kv[4:])
        begin = before * self.sizes["stride"] - (state.appended - recent[0].shape[2])
        if self._summaries(state.appended) > before:
            rows = (y[:, :, begin:].transpose(1, 2).to(q.dtype) for y in recent)
            new = (phi(self._blocks(y, None)) for phi, y in zip(self._compress, rows, strict=True))
            state.compressed.append(*(y.transpose(1, 2) for y in new))
        read = (state.compressed.read(), *seen)
        branches = (tuple(y.transpose(1, 2).to(q.dtype) for y in pair) for pair in read)
        return self._attend(gates, (q, turned), *branches)

    def _summaries(self, tokens: int) -> int:
        return summaries(tokens, self.sizes["block_size"], self.sizes["stride"])

    @property
    def _compress(self) -> tuple[Compress, Compress]:
        return self.compress_k, self.compress_v

    def _compressed(self, pair: tuple[Tensor, Tensor], cu_seqlens: Tensor | None) -> tuple[Tensor, ...]:
        """Summaries [B, M, Hkv, K] of keys and values [B, T, Hkv, K]."""
        maps = [linear for phi in self._compress for linear in (phi.up, phi.down)]
        if joins(pair[0]) and are_plain(maps):
            blocks = self._blocks(torch.cat(pair), cu_seqlens)
            return compress_together(self._compress, blocks.unflatten(0, (2, -1)))
        blocks = (self._blocks(y, cu_seqlens) for y in pair)
        return tuple(phi(y) for phi, y in zip(self._compress, blocks, strict=True))

    def _blocks(self, x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        """x [B, T, Hkv, K] -> [B, M, Hkv, l, K]."""
        sizes = {key: self.sizes[key] for key in ("block_size", "stride")}
        return kernels.nsa_blocks(x, cu_seqlens=cu_seqlens, **sizes).transpose(2, 3)

    def _qkv(self, x: Tensor, positions: Tensor):
        """(q, RoPE(q)) [B, T, H, K], and (k, v) [B, T, Hkv, K] of the three branches."""
        qkv = project(x, self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (y.unflatten(-1, (-1, self.width)) for y in qkv)
        plain, near, far = k.split(self.kv_heads, 2)
        turned, near, far = self.rotate((q, near, far), positions)
        return (q, turned), *zip((plain, near, far), v.split(self.kv_heads, 2), strict=True)

    def _gates(self, x: Tensor) -> Tensor:
        """g [B, T, H, 3] in at least fp32."""
        gates = fp32_linear(x, self.gate_proj.weight) + self.gate_proj.bias
        return torch.sigmoid(gates).unflatten(-1, (self.heads, 3))

    def _attend(self, gates: Tensor, q, compressed, selected, sliding, cu_seqlens=None) -> Tensor:
        return kernels.nsa_attention(
            q[0],
            compressed,
            selected,
            sliding,
            gates,
            q_rotated=q[1],
            cu_seqlens=cu_seqlens,
            backend=self.backend,
            **self.sizes,
        )


def summaries(tokens: int, block_size: int, stride: int) -> int:
    """The number of blocks [i·stride, i·stride + block_size) that are complete after so many tokens."""
    return max(0, (tokens - block_size) // stride + 1)


def sizes(config: NSAConfig, seq_len: int) -> dict[str, int]:
    """l, d, l', n, w for a configured length, by the names of `kernels.nsa_attention`.

    Raises UserError unless d divides l and l', n ≥ 3 and all are at least 1.
    """
    block = 2 ** min(6, max(1, int(math.log2(max(1, seq_len)) / 2)))
    scaled = {
        "block_size": max(1, block // 2),
        "stride": max(1, block // 4),
        "select_size": block,
        "n_select": min(16, max(4, seq_len // (4 * block))),
        "window": max(1, min(512, seq_len // 8)),
    }
    out = {
        key: value if getattr(config, key) is None else getattr(config, key) for key, value in scaled.items()
    }
    for key, value in out.items():
        at_least(value, 3 if key == "n_select" else 1, f"nsa.{key}")
    for key in ("block_size", "select_size"):
        if out[key] % out["stride"]:
            raise UserError(f"nsa.{key}={out[key]} must be a multiple of nsa.stride={out['stride']}")
    return out
