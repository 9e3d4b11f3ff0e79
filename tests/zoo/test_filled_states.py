"""A decode state that is filled without decoding, as benches do: the memory and the reads of one that was decoded."""

from typing import NamedTuple

import pytest
import torch
from support.contract_cases import build, fast_for_mixers, tokens

from zoo.modules.caches import GroupedKVCache, KVCache, fill_state, join_states, select_sequences, state_bytes


@fast_for_mixers
@torch.no_grad()
def test_a_filled_state_takes_the_bytes_of_a_decoded_one(case):
    """21 tokens from no room at all, so that storage grows on the way; timelines are filled evenly, and then some."""
    model = build(case.config(depth=1)).eval()
    decoded, filled = (model.init_state(1, capacity=0) for _ in range(2))
    for token in tokens(1, 21).unbind(1):
        _, decoded = model.step(token, decoded)
    fill_state(filled.layers, 21)
    for one, other in zip(decoded.layers, filled.layers, strict=True):
        if not isinstance(one, GroupedKVCache):
            assert state_bytes(other) == state_bytes(one)
    model.step(tokens(1, 1)[:, 0], filled)


@pytest.mark.parametrize("count", [1, 20, 21, 22, 24])
def test_lists_that_are_filled_hold_every_token(count):
    cache = GroupedKVCache(2, 3, 4, 5)
    cache.fill(count)
    assert cache.appended == count
    assert cache.keys.shape[3] >= cache.lengths.max() >= count / 4 > cache.lengths.max() - 1


class Pair(NamedTuple):
    """A decode state of two parts that have names."""

    first: torch.Tensor
    second: list[torch.Tensor]


def test_states_with_named_parts_keep_their_names():
    one, two = (Pair(torch.full((1, 2), n), [torch.full((1,), -n)]) for n in (1.0, 2.0))
    joined = join_states([one, two])
    assert isinstance(joined, Pair)
    assert joined.first.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    picked = select_sequences(joined, torch.tensor([1]))
    assert isinstance(picked, Pair)
    assert picked.second[0].tolist() == [-2.0]


@pytest.mark.parametrize("make", [lambda: KVCache(2, 1, 4), lambda: GroupedKVCache(2, 1, 3, 4)])
def test_sequences_that_are_picked_or_put_together_keep_their_tokens(make):
    """The number of tokens says at which position the next one stands."""
    cache = make()
    cache.fill(5)
    assert cache.appended == 5
    picked = cache.select(torch.tensor([1]))
    assert (picked.batch, picked.appended) == (1, 5)
    joined = cache.join([cache, cache])
    assert (joined.batch, joined.appended) == (4, 5)


@pytest.mark.parametrize("tokens", [1, 3])
def test_rows_that_are_read_have_the_dtype_of_their_cache(tokens: int):
    cache = KVCache(1, 1, 4, window=2, dtype=torch.bfloat16)
    rows = torch.ones(1, 1, tokens, 4)
    assert {x.dtype for x in cache.append(rows, rows)} == {torch.bfloat16}
