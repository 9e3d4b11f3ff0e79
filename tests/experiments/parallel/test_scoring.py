"""Scores of windows whose tokens lie on several processes: those of whole windows, each computed by all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.ranks import on_ranks

from experiments.data import Split
from experiments.scoring.text import score_split
from zoo.config import ModelConfig
from zoo.model import LanguageModel

LENGTH, SEPARATOR = 12, 0


def scores(shards: bool) -> list[dict]:
    """Of windows that end in a shorter one (7 of 12 tokens), alone and in documents, in this process."""
    config = ModelConfig(d_model=16, n_heads=2, pattern="KFGC", depth=4)
    model = LanguageModel(config, vocab_size=11, seq_len=LENGTH, seed=0).double()
    tokens = np.random.default_rng(0).integers(0, 11, 5 * LENGTH + 8).astype(np.uint16)
    seen: list[int] = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].numel()))
    found = []
    for document_bos in (None, SEPARATOR):
        score = score_split(
            model,
            Split(tokens, 1, 1, 1),
            stride=LENGTH,
            batch_size=2,
            document_bos=document_bos,
            separator=SEPARATOR,
            shards=dist.group.WORLD if shards else None,
        )
        documents = torch.from_numpy(score.documents)
        found.append({"nats": score.nats, "tokens": score.tokens, "documents": documents, "most": max(seen)})
    return found


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3])
def test_shards_score_what_whole_windows_do(size: int):
    whole = scores(False)
    for rank in on_ranks(size, scores, True):
        for own, one in zip(rank, whole, strict=True):
            assert own["tokens"] == one["tokens"] == 5 * LENGTH + 7
            assert own["nats"] == pytest.approx(one["nats"], rel=1e-6)  # the losses are of fp32 logits
            torch.testing.assert_close(own["documents"], one["documents"], rtol=1e-5, atol=1e-5)
            assert own["most"] == one["most"] / size
