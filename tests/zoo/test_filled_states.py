"""A decode state that is filled without decoding, as benches do: the memory and the reads of one that was decoded."""

import pytest
import torch
from support.contract_cases import build, fast_for_mixers, tokens

from zoo.modules.caches import GroupedKVCache
from zoo.modules.states import fill_state, state_bytes


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
