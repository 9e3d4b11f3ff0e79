"""Scores of windows whose tokens lie on several processes: those of whole windows, each computed by all of them."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.ranks import on_ranks

from experiments.data import Split
from experiments.parallel import group
from experiments.parallel.group import by_shards
from experiments.scoring.text import score_split
from zoo.config import ModelConfig
from zoo.context import Context
from zoo.model import LanguageModel

LENGTH, SEPARATOR = 12, 0
LENGTHS = (6, 7)


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


def positions() -> list[dict[str, torch.Tensor]]:
    """What each token reads of itself, its target and its place in its sequence, where two processes hold them."""
    seen: list[int] = []

    def read(own: torch.Tensor, targets: torch.Tensor, ctx: Context) -> torch.Tensor:
        seen.append(own.shape[1])
        return (10_000 * own + 100 * targets + ctx.positions).double()

    found = []
    for length in LENGTHS:
        tokens = torch.arange(length)[None] + 10
        packed = torch.tensor([0, 2, length], dtype=torch.int32)
        for boundaries in (None, packed):
            found.append(by_shards(read, tokens, tokens + 1, boundaries, dist.group.WORLD))
    own = torch.tensor([dist.get_rank(), *seen])
    return [*found, group.gathered(own)]


@pytest.mark.slow
def test_every_process_has_the_numbers_of_all_tokens_in_their_order():
    """Also where the processes do not divide them; each has read its share and no more."""
    expected = []
    for length in LENGTHS:
        place, tokens = torch.arange(length), torch.arange(length) + 10
        for where in (place, torch.where(place < 2, place, place - 2)):
            expected.append((10_000 * tokens + 100 * (tokens + 1) + where).double()[None])
    for *found, gathered in on_ranks(2, positions):
        assert all(map(torch.equal, found, expected))
        assert gathered.tolist() == [[0, 3, 3, 4, 4], [1, 3, 3, 4, 4]]
