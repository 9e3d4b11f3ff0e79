"""Which numbers a process holds whole where a sharded model (FSDP2) is trained, and which in parts."""

from __future__ import annotations

import pytest
import torch
from support.ranks import on_ranks
from torch.distributed.tensor import DTensor

from experiments.parallel.checkpoint import fill
from experiments.parallel.sharded import is_sharded, shard, whole
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


@pytest.mark.slow
def test_a_checkpoint_of_one_process_is_cut_into_parts_but_for_scalars():
    for found in on_ranks(2, _filled):
        assert found == {"weight": (4, True), "moment": (4, True), "step": (None, True)}


def _filled() -> dict[str, tuple[int | None, bool]]:
    """Rows of this process's part (None: no part), and whether all parts are what the checkpoint had."""
    model = LanguageModel(ModelConfig(d_model=16, n_heads=2, depth=1), vocab_size=8, seq_len=4)
    weight, moment, step = torch.randn(8, 16), torch.randn(8, 16), torch.tensor(3.0)
    for number in (weight, moment):  # alike on both
        torch.distributed.broadcast(number, 0)
    checkpoint = {
        "state_dict": {"model.embedding.weight": weight},
        "optimizer_states": [{"state": {0: {"step": step, "exp_avg": moment}}}],
    }
    fill(checkpoint, shard(model, torch.device("cpu"), reshard=True))
    state = checkpoint["optimizer_states"][0]["state"][0]
    pairs = {
        "weight": (checkpoint["state_dict"]["model.embedding.weight"], weight),
        "moment": (state["exp_avg"], moment),
        "step": (state["step"], step),
    }
    return {
        name: (len(x.to_local()) if isinstance(x, DTensor) else None, torch.equal(whole(x), before))
        for name, (x, before) in pairs.items()
    }
