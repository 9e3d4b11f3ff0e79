"""The states of the mesa layer: those that chunks start from, S and R, and backward in time their gradients dH and dG.

What a chunk adds is a product of its own tokens: those of all chunks are computed at once (`_writes`). What remains one
chunk after another is the sum (triton_scan.py).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.mesa.triton_arguments import States
from kernels.ops.mesa.triton_scan import scan
from kernels.ops.mesa.triton_tiles import decay_to_end, load_scalars, load_stored, product
from kernels.ops.mesa.work import CHUNK
from kernels.packing.chunk_layout import ChunkLayout
from kernels.triton_common.device import chunk_bounds
from kernels.triton_common.masked_tiles import store_matrix
from kernels.triton_common.tuning import Tuned


@triton.jit
def _weighted(x, weight, first, row, rows, head, H, column, WIDTH):
    """(w_s·x_s)ᵀ [column, C] of a chunk's tokens s."""
    return tl.trans(load_stored(x, first, row, rows, head, H, column, WIDTH).to(tl.float32) * weight[:, None])


@triton.jit
def _written(
    a, b, weight, state, first, row, rows, head, across, down, H, A, B,
    MIRRORED: tl.constexpr, PRECISION: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """Store a tile [BA, BB] of Σ_s w_s·a_s·b_sᵀ in a state; MIRRORED: of Σ_s w_s·(a_s·b_sᵀ + b_s·a_sᵀ).

    inputs     a [T, H, A], b [T, H, B]; weight w [C]
    outputs    state [A, B]
    place      first token, row [C], rows of the chunk; head; down, across: the tile's number along A and B
    sizes      H heads; A, B widths
    constants  MIRRORED; PRECISION of products; BA, BB sides of the tile
    """
    i, j = down * BA + tl.arange(0, BA), across * BB + tl.arange(0, BB)
    total = tl.zeros((BA, BB), tl.float32)
    left = _weighted(a, weight, first, row, rows, head, H, i, A)
    total = product(left, load_stored(b, first, row, rows, head, H, j, B), total, PRECISION)
    if MIRRORED:
        left = _weighted(b, weight, first, row, rows, head, H, i, A)
        total = product(left, load_stored(a, first, row, rows, head, H, j, B), total, PRECISION)
    store_matrix(state, total, i, j, A, B)


@triton.jit
def _writes(
    a, b, v, g, beta, states_kk, states_kv, decays, table, cu, H, K, V,
    BACKWARD: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, BA: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """The sums that a chunk and head adds to H [K, K] and G [K, V], a tile of one of them, and its decay γ = exp Σ g:

    forward    Σ_s w_s·a_s·b_sᵀ and Σ_s w_s·b_s·v_sᵀ, w_s: β_s times the decay from s to the chunk's end
    backward   −½·Σ_t c_t·(a_t·b_tᵀ + b_t·a_tᵀ), the gradient of a solution, and Σ_t c_t·b_t·v_tᵀ, c_t: the decay
               from the chunk's start to t

    inputs     a, b [T, H, K]; v [T, H, V]; g, beta [T, H]
    outputs    states_kk [rows of the table, H, K, K], states_kv [rows of the table, H, K, V], decays [rows of it, H]
    layout     table, cu
    sizes      H heads; K, V widths
    constants  BACKWARD; PRECISION of products; C tokens a chunk; BA, BB sides of the state's tile
    """
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    down, across = tl.program_id(2) % tl.cdiv(K, BA), tl.program_id(2) // tl.cdiv(K, BA)
    sequence, _, end, first = chunk_bounds(table, cu, chunk, C)
    if sequence >= 0:
        row, rows = tl.arange(0, C), (end - first).to(tl.int32)
        gates = load_scalars(g, first, row, rows, head, H)
        place = chunk * H + head
        if tl.program_id(2) == 0:
            tl.store(decays + place, tl.exp(tl.sum(gates, axis=0)))
        if BACKWARD:
            # c_t = exp(Σ_{r≤t} g_r)
            weight = tl.exp(tl.cumsum(gates, axis=0))
        else:
            # w_s = β_s·exp(Σ_{r>s} g_r)
            weight = load_scalars(beta, first, row, rows, head, H)
            weight *= decay_to_end(g, first, row, rows, head, H, C)
        tiles = tl.cdiv(K, BB)
        if across < tiles:
            half = -0.5 * weight if BACKWARD else weight
            _written(
                a, b, half, states_kk + place * K * K, first, row, rows, head, across, down, H, K, K,
                BACKWARD, PRECISION, BA, BB,
            )  # fmt: skip
        else:
            _written(
                b, v, weight, states_kv + place * K * V, first, row, rows, head, across - tiles, down, H, K, V,
                False, PRECISION, BA, BB,
            )  # fmt: skip


_writes_tuned = Tuned(
    _writes,
    [
        triton.Config({"BA": rows, "BB": columns}, num_warps=warps, num_stages=1)
        for rows, columns, warps in ((64, 64, 4), (64, 64, 8), (32, 64, 4), (32, 32, 4))
    ],
    ["K", "V", "BACKWARD", "PRECISION"],
)


def chunk_states(
    a: Tensor, b: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, outer: States, final: States,
    layout: ChunkLayout, precision: str,
) -> States:  # fmt: skip
    """Compute H and G before every chunk; without beta, the gradients of those after every chunk.

    a, b, v       [B, T, H, K], [B, T, H, K] and [B, T, H, V]: a·bᵀ is written into H, b·vᵀ into G
    g, beta       [B, T, H]
    outer, final  [N, H, K, K] and [N, H, K, V], read and written; all contiguous
    """
    heads, height, width = g.shape[2], b.shape[3], v.shape[3]
    fresh = {"dtype": torch.float32, "device": g.device}
    states = States(*(torch.empty(layout.chunks, heads, height, size, **fresh) for size in (height, width)))
    decays = torch.empty(layout.chunks, heads, **fresh)

    def grid(meta: dict[str, int]) -> tuple[int, ...]:
        tiles = sum(triton.cdiv(size, meta["BB"]) for size in (height, width))
        return layout.chunks, heads, triton.cdiv(height, meta["BA"]) * tiles

    _writes_tuned[grid](
        a, b, v, g, beta, *states, decays, layout.table, layout.cu, heads, height, width,
        BACKWARD=beta is None, PRECISION=precision, C=CHUNK,
    )  # fmt: skip
    scan(states, decays, outer, final, layout, backward=beta is None)
    return states
