"""Packed sequences: owners of tokens and rows, chunks, the sort by group, and sequences without a token."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.kernel_cases import assert_agree, normal, packed, qkv
from support.path_attention_cases import inputs as path_inputs
from support.triton_cases import DEVICE
from torch import Tensor

import kernels
from kernels.indices import sort_by_group
from kernels.packing import (
    boundaries,
    chunk_counts,
    most_chunks,
    ragged_rows,
    sequence_starts,
    token_sequences,
)
from kernels.triton_common import chunk_tables


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_every_token_has_its_sequence_and_the_first_token_of_that(dtype):
    cu = torch.tensor([0, 3, 3, 4, 6], dtype=dtype)
    assert token_sequences(cu, 6).tolist() == [0, 0, 0, 2, 3, 3]
    assert sequence_starts(cu, 6, cu.device).tolist() == [0, 0, 0, 3, 4, 4]
    assert sequence_starts(None, 3, cu.device).tolist() == [0, 0, 0]


def test_a_batch_is_packed_sequences():
    x = torch.zeros(3, 2, 5)
    assert token_sequences(boundaries(x, None), 6).tolist() == [0, 0, 1, 1, 2, 2]


def test_rows_behind_the_last_sequence_count_on():
    sequence, number = ragged_rows(torch.tensor([2, 0, 1]), 5)
    assert sequence.tolist() == [0, 0, 2, 2, 2]
    assert number.tolist() == [0, 1, 0, 1, 2]


def test_no_division_into_sequences_needs_more_chunks_than_the_bound():
    for lengths in ([10], [1, 9], [5, 5], [9, 1, 0], [1, 1, 8]):
        cu = torch.tensor([0, *lengths]).cumsum(0)
        assert int(chunk_counts(cu, 4).sum()) <= most_chunks(10, len(lengths), 4)
    assert most_chunks(10, 3, 4) == 4  # of 1, 1 and 8 tokens


def test_sorting_by_group_is_stable_and_has_an_inverse():
    group = torch.tensor([2, 0, 2, 4, 0, 2])
    found = sort_by_group(group, 5)
    assert found.order.tolist() == [1, 4, 0, 2, 5, 3]
    assert found.offsets.tolist() == [0, 2, 2, 5, 5, 6]
    assert found.order[found.places()].tolist() == list(range(6))


@pytest.mark.parametrize(
    "lengths", [(5,), (32, 0, 1, 33, 0), (0, 64), (1, 1, 1), (33, 2, 0) * 50, (0,)], ids=len
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_chunks_of_packed_sequences(lengths, dtype):
    """Against counting them: every token is in one chunk, chunks end at boundaries, idle rows say so."""
    x, cu = torch.zeros(1, sum(lengths), 2), packed(*lengths).to(DEVICE, dtype)
    table, firsts = chunk_tables(x, cu, 32)
    wanted = [[i, j] for i, length in enumerate(lengths) for j in range(-(-length // 32))]
    assert table[: len(wanted)].tolist() == wanted
    assert (table[len(wanted) :] == -1).all()
    assert firsts.tolist() == [sum(-(-n // 32) for n in lengths[:i]) for i in range(len(lengths) + 1)]
    assert table.dtype == firsts.dtype == torch.int32


def test_a_batch_is_packed_sequences_of_one_length():
    x = torch.zeros(3, 40, 2)
    assert boundaries(x, None).tolist() == [0, 40, 80, 120]
    table, firsts = chunk_tables(x, None, 32)
    assert table.tolist() == [[i, j] for i in range(3) for j in range(2)]
    assert firsts.tolist() == [0, 2, 4, 6]
    assert {boundaries(x, None).dtype, table.dtype} == {torch.int32}
    empty = x[:, :0]
    table, firsts = chunk_tables(empty, None, 32)
    assert boundaries(empty, None).tolist() == firsts.tolist() == [0, 0, 0, 0]
    assert table.shape == (0, 2)


FULL, BETWEEN = packed(6, 3), packed(0, 0, 6, 0, 3, 0, 0)
HELD = [2, 4]  # of the sequences of BETWEEN, those with tokens
TIME = 9


def with_states(operation, *inputs: Tensor, states: list[Tensor], cu_seqlens: Tensor, **options) -> Tensor:
    """The output and the final states of the sequences that have tokens; initial states of the others are ones."""
    if len(cu_seqlens) > 3:
        states = [torch.ones(7, *x.shape[1:]).to(x).index_copy(0, torch.tensor(HELD), x) for x in states]
    given = states[0] if len(states) == 1 else tuple(states)
    o, final = operation(
        *inputs, initial_state=given, output_final_state=True, cu_seqlens=cu_seqlens, **options
    )
    finals = [final] if isinstance(final, Tensor) else list(final)
    if len(cu_seqlens) > 3:
        empty = [i for i in range(7) if i not in HELD]
        for x in finals:
            torch.testing.assert_close(x[empty], torch.ones_like(x[empty]), rtol=0, atol=0)
        finals = [x[HELD] for x in finals]
    return torch.cat([o.flatten(), *(x.flatten() for x in finals)])


def linear(width: int = 5) -> list[Tensor]:
    """q, k, v, g, beta and initial states of two heads and two sequences."""
    q, k, v = qkv(1, TIME, heads=2, width=width)
    gates = [-normal(1, TIME, 2, seed=4).abs(), normal(1, TIME, 2, seed=5).sigmoid()]
    return [q, F.normalize(k, dim=-1), v, *gates, normal(2, 2, width, width, seed=6)]


def delta_rule(*inputs: Tensor, **options) -> Tensor:
    return with_states(kernels.delta_rule, *inputs[:-1], states=[inputs[-1]], **options)


def mesa(*inputs: Tensor, **options) -> Tensor:
    *inputs, root, h_kv = inputs
    lamb = torch.ones(2, 5).double()
    return with_states(kernels.mesa, *inputs, lamb, states=[root @ root.mT, h_kv], cg_steps=5, **options)


def residuals(q, k, g, beta, **options) -> Tensor:
    del options["backend"]  # it has one form
    return kernels.mesa_residuals(q, k, g, beta, torch.ones(2, 5).double(), cg_steps=2, **options)


def memory_mixture(q, k, v, g, beta, states, **options) -> Tensor:
    k, v, g, beta = (torch.stack([x, x.flip(1)], 2) for x in (k, v, g, beta))
    routes = (torch.arange(TIME) % 3 > 0).long().view(1, TIME, 1)
    given = q, k, v, g, beta, routes, torch.full((1, TIME, 1), 0.7).double()
    return with_states(kernels.memory_mixture, *given, states=[torch.stack([states, -states], 1)], **options)


def short_conv(x: Tensor, weight: Tensor, state: Tensor, *, cu_seqlens: Tensor, backend: str) -> Tensor:
    if len(cu_seqlens) > 3:
        state = torch.ones(7, *state.shape[1:]).to(state).index_copy(0, torch.tensor(HELD), state)
    y, after = kernels.short_conv(x, weight, state=state, cu_seqlens=cu_seqlens, backend=backend)
    return torch.cat([y.flatten(), (after if len(after) == 2 else after[HELD]).flatten()])


def timelines(*inputs: Tensor, **options) -> Tensor:
    assignment = (torch.arange(TIME * 2) % 5 % 3).view(1, TIME, 2)
    return kernels.timeline_attention(*inputs, assignment, n_timelines=3, rope_base=10.0, **options)


def nsa(q: Tensor, k: Tensor, v: Tensor, gates: Tensor, **options) -> Tensor:
    sizes = {"block_size": 2, "stride": 1, "select_size": 2, "n_select": 3, "window": 2}
    cu = options["cu_seqlens"]
    blocks = [kernels.nsa_blocks(x, block_size=2, stride=1, cu_seqlens=cu).mean(2) for x in (k, v)]
    return kernels.nsa_attention(q, tuple(blocks), (k, v), (k, v), gates, q_rotated=q, **sizes, **options)


def indexer() -> list[Tensor]:
    """q_idx, k_idx, w_idx, bias of three heads."""
    wide = normal(1, TIME, 3, 4, seed=7), normal(1, TIME, 4, seed=8)
    return [*wide, normal(1, TIME, 3, seed=9).sigmoid(), normal(3, seed=10)]


def sparse(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    indices = kernels.lightning_topk(*indexer(), k=2, **options)
    return kernels.sparse_attention(q, k, v, indices, **options)


CALLS = {
    "attention": (kernels.attention, qkv(1, TIME, heads=2)),
    "window": (partial(kernels.attention, window=2), qkv(1, TIME, heads=2)),
    "timeline_attention": (timelines, qkv(1, TIME, heads=2)),
    "path_attention": (kernels.path_attention, path_inputs(1, TIME, heads=2)),
    "nsa_attention": (nsa, [*qkv(1, TIME, heads=2), normal(1, TIME, 2, 3, seed=4).sigmoid()]),
    "sparse_attention": (sparse, qkv(1, TIME, heads=2)),
    "delta_rule": (delta_rule, linear()),
    "memory_mixture": (memory_mixture, linear()),
    "mesa": (mesa, [*linear(), normal(2, 2, 5, 5, seed=8)]),
    "mesa_residuals": (residuals, [x for i, x in enumerate(linear()[:5]) if i != 2]),
    "short_conv": (short_conv, [normal(1, TIME, 4), normal(4, 3), normal(2, 4, 2)]),
}


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("name", CALLS)
def test_empty_sequences_change_nothing(name, backend):
    """Results, and gradients of all inputs, with two before, one between and two behind; their states stay."""
    call, inputs = CALLS[name]
    pair = [partial(call, cu_seqlens=cu, backend=backend) for cu in (BETWEEN, FULL)]
    assert_agree(*pair, inputs)
