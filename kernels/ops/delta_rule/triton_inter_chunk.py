"""The walks of the chunked delta rule from state to state: forward over a sequence's chunks, and back for gradients.

A program holds K × BV of a head's state in fp32; columns of values know nothing of each other. With the notation of
triton_forward.py, and dS the gradient of the state after a chunk, dF that of what the state takes in, F = Diag(β)·E:

    E  = U − W·S₀                        S   = exp(G_last)⊙S₀ + K̃ᵀ·Diag(β)·E
    dF = scale·Pᵀ·dO + K̃·dS             dS₀ = exp(G_last)⊙dS + scale·Q̄ᵀ·dO − Wᵀ·Diag(β)·dF

E are the errors that the tokens correct; dF is the gradient where E did not depend on F.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.delta_rule.triton_tiles import CHUNK, load_column, load_rows, state_tile, store_rows
from kernels.triton_common.device import padded
from kernels.triton_common.tuning import Tuned


@dataclass(frozen=True)
class Chunked:
    """What the scans read, of all chunks; operands in the inputs' dtype.

    from_start  Q̄ [B·T, H, K]        reads  W [B·T, H, K]
    to_end      K̃ [B·T, H, K]        values U [B·T, H, V]
    whole       exp(G_last), fp32 [chunks, H, K or 1]
    """

    from_start: Tensor
    to_end: Tensor
    reads: Tensor
    values: Tensor
    whole: Tensor


@triton.jit
def _load_whole(whole, chunk, head, H, key, K, SHARED: tl.constexpr):
    """The decay of a whole chunk, [BK], or [1] if channels share it."""
    if SHARED:
        decay = tl.load(whole + chunk * H + head + tl.arange(0, 1))
    else:
        decay = tl.load(whole + (chunk * H + head) * K + key, mask=key < K, other=0.0)
    return decay


@triton.jit
def _walk(firsts, cu, sequence):
    """Of a sequence: its first token and its end, its first chunk, and how many there are."""
    first_chunk = tl.load(firsts + sequence)
    chunks = tl.load(firsts + sequence + 1) - first_chunk
    return tl.load(cu + sequence).to(tl.int64), tl.load(cu + sequence + 1).to(tl.int64), first_chunk, chunks


@triton.jit
def _given(state, place, inside, BK: tl.constexpr, BV: tl.constexpr):
    """The tile of a state that the walk starts from; zeros where none is given."""
    tile = tl.zeros((BK, BV), tl.float32)
    if state is not None:
        tile += tl.load(state + place, mask=inside, other=0.0).to(tl.float32)
    return tile


@triton.jit
def _scan(
    to_end, reads, values, whole, beta, initial, states, errors, final, firsts, cu, H,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """states [chunks, H, K, V] that chunks start from, errors E [tokens, H, V], the final states [N, H, K, V]."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    place, inside = state_tile(sequence, head, H, key, value, K, V)
    state = _given(initial, place, inside, BK, BV)
    begin, end, first_chunk, chunks = _walk(firsts, cu, sequence)
    for step in range(chunks):
        chunk = (first_chunk + step).to(tl.int64)
        at, _ = state_tile(chunk, head, H, key, value, K, V)
        before = state.to(states.dtype.element_ty)
        tl.store(states + at, before, mask=inside)
        token = begin + step * C + tl.arange(0, C)
        error = load_rows(values, token, end, head, H, value, V).to(tl.float32)
        read = load_rows(reads, token, end, head, H, key, K)
        error -= tl.dot(read, before, input_precision="ieee")
        store_rows(errors, error, token, end, head, H, value, V)
        write = (error * load_column(beta, token, end, head, H)[:, None]).to(states.dtype.element_ty)
        keys = load_rows(to_end, token, end, head, H, key, K)
        state *= _load_whole(whole, chunk, head, H, key, K, SHARED)[:, None]
        state += tl.dot(tl.trans(keys), write, input_precision="ieee")
    if final is not None:
        tl.store(final + place, state, mask=inside)


@triton.jit
def _scan_back(
    from_start, to_end, reads, whole, beta, p, d_o, d_final, d_states, d_writes, d_initial, firsts, cu, scale, H,
    K: tl.constexpr, V: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """d_states [chunks, H, K, V] of the states after chunks, d_writes dF [tokens, H, V], d_initial [N, H, K, V]."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key = tl.arange(0, BK)
    value = tl.program_id(2) * BV + tl.arange(0, BV)
    place, inside = state_tile(sequence, head, H, key, value, K, V)
    d_state = _given(d_final, place, inside, BK, BV)
    begin, end, first_chunk, chunks = _walk(firsts, cu, sequence)
    for back in range(chunks):
        step = chunks - 1 - back
        chunk = (first_chunk + step).to(tl.int64)
        at, _ = state_tile(chunk, head, H, key, value, K, V)
        d_after = d_state.to(d_states.dtype.element_ty)
        tl.store(d_states + at, d_after, mask=inside)
        token = begin + step * C + tl.arange(0, C)
        d_out = load_rows(d_o, token, end, head, H, value, V).to(p.dtype.element_ty)
        products = load_rows(p, token, end, head, H, tl.arange(0, C), C)
        d_write = tl.dot(tl.trans(products), d_out, input_precision="ieee") * scale
        keys = load_rows(to_end, token, end, head, H, key, K)
        d_write += tl.dot(keys, d_after, input_precision="ieee")
        store_rows(d_writes, d_write, token, end, head, H, value, V)
        d_error = (d_write * load_column(beta, token, end, head, H)[:, None]).to(p.dtype.element_ty)
        queries = load_rows(from_start, token, end, head, H, key, K)
        read = load_rows(reads, token, end, head, H, key, K)
        d_state *= _load_whole(whole, chunk, head, H, key, K, SHARED)[:, None]
        d_state += tl.dot(tl.trans(queries), d_out, input_precision="ieee") * scale
        d_state -= tl.dot(tl.trans(read), d_error, input_precision="ieee")
    if d_initial is not None:
        tl.store(d_initial + place, d_state, mask=inside)


_TILES = [
    triton.Config({"BV": width}, num_warps=warps, num_stages=stages)
    for width, warps, stages in ((64, 4, 2), (32, 4, 3), (64, 8, 2), (32, 4, 1), (16, 4, 1), (16, 4, 3))
]
_scan_tuned = Tuned(_scan, _TILES, ["K", "V", "SHARED"])
_scan_back_tuned = Tuned(_scan_back, _TILES, ["K", "V", "SHARED"])


def scan(
    x: Chunked, beta: Tensor, initial: Tensor | None, final: Tensor | None, firsts: Tensor, cu: Tensor
) -> tuple[Tensor, Tensor]:
    """The states that chunks start from and E, both in the inputs' dtype; fills `final` if there is one."""
    heads, width, value_width = beta.shape[2], x.reads.shape[-1], x.values.shape[-1]
    shape = (x.whole.shape[0], heads, width, value_width)
    states = torch.empty(shape, dtype=x.reads.dtype, device=x.reads.device)
    errors = torch.empty_like(x.values)
    _scan_tuned[lambda meta: (len(cu) - 1, heads, triton.cdiv(value_width, meta["BV"]))](
        x.to_end, x.reads, x.values, x.whole, beta, initial, states, errors, final, firsts, cu, heads,
        K=width, V=value_width, SHARED=x.whole.shape[2] == 1 < width, C=CHUNK, BK=padded(width),
    )  # fmt: skip
    return states, errors


def scan_back(
    x: Chunked, beta: Tensor, p: Tensor, d_o: Tensor, d_final: Tensor | None, d_initial: Tensor | None,
    scale: float, firsts: Tensor, cu: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dS of all chunks and dF, in the inputs' dtype; fills `d_initial` if there is one."""
    heads, width, value_width = beta.shape[2], x.reads.shape[-1], x.values.shape[-1]
    shape = (x.whole.shape[0], heads, width, value_width)
    d_states = torch.empty(shape, dtype=x.reads.dtype, device=x.reads.device)
    d_writes = torch.empty_like(x.values)
    _scan_back_tuned[lambda meta: (len(cu) - 1, heads, triton.cdiv(value_width, meta["BV"]))](
        x.from_start, x.to_end, x.reads, x.whole, beta, p, d_o, d_final, d_states, d_writes, d_initial, firsts, cu,
        scale, heads, K=width, V=value_width, SHARED=x.whole.shape[2] == 1 < width, C=CHUNK, BK=padded(width),
    )  # fmt: skip
    return d_states, d_writes
