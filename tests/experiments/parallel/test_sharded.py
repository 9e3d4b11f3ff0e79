"""Which parameters a process holds whole while a sharded model (FSDP2) is trained."""

from __future__ import annotations

import pytest
import torch
from support.ranks import on_ranks

from experiments.parallel.sharded import is_sharded, shard
from zoo import LanguageModel, ModelConfig


@pytest.mark.slow
def test_layers_are_given_back_after_their_forward_or_kept_until_their_backward():
    for zero_3, zero_2 in on_ranks(2, _given_back):
        assert zero_3 == {"forward": [True, True], "backward": [True, True]}
        assert zero_2 == {"forward": [False, False], "backward": [True, True]}


def _given_back() -> list[dict[str, list[bool]]]:
    """With resharding and without: whether this process has only its parts of each layer after either pass."""
    found = []
    for reshard in (True, False):
        model = LanguageModel(ModelConfig(d_model=16, n_heads=2, depth=2), vocab_size=8, seq_len=4)
        shard(model, torch.device("cpu"), reshard=reshard)
        logits = model(torch.arange(4).unsqueeze(0))[0]
        after = {"forward": [is_sharded(layer) for layer in model.layers]}
        logits.sum().backward()
        after["backward"] = [is_sharded(layer) for layer in model.layers]
        found.append(after)
    return found
