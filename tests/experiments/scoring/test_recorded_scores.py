"""Scores of models whose weights are a formula: windows, packed documents, carried states."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.recorded import check, flat
from support.steady import changed, set_by_formula, tiny_config

from experiments.data import Sequences, Split
from experiments.data.tasks_base import IGNORE
from experiments.scoring import text
from experiments.scoring.tasks import accuracies, score_sequences
from kernels import linear_cross_entropy
from zoo import LanguageModel

RECORDED = Path(__file__).parent / "recorded"
TOKENS = (np.arange(90) * 7 % 19).astype(np.uint16)
TOKENS[::23] = 0  # separators
SPLIT = Split(TOKENS, 40, 300, 4)


def _model(**keys) -> LanguageModel:
    config = changed(tiny_config().model, **keys)
    return set_by_formula(LanguageModel(config, vocab_size=20, seq_len=16), 0.4)


def test_scores_of_a_split():
    def lines() -> Iterator[str]:
        for pattern in ("F", "K"):
            model = _model(pattern=pattern)
            for keys in (
                {"stride": 16, "batch_size": 3},
                {"stride": 5, "batch_size": 2},
                {"stride": 8, "batch_size": 4, "document_bos": 0},
                {"stride": 16, "batch_size": 1, "windows": 2},
                {"stride": 8, "batch_size": 2, "separator": 0},
            ):
                told: list[int] = []
                score = text.score_split(model, SPLIT, progress=told.append, **keys)
                yield f"{pattern} {keys}: {told}, training {model.training}"
                yield from flat({**score.metrics(), "documents": score.documents}, "  ")
            for keys in (
                {"batch_size": 2},
                {"batch_size": 2, "document_bos": 0},
                {"batch_size": 1, "document_bos": 0},
            ):
                told = []
                score = text.score_carried(model, SPLIT, progress=told.append, **keys)
                yield f"{pattern} carried {keys}: {told}"
                yield from flat(score.metrics(), "  ")
        yield f"sequences {text._sequences(TOKENS, None)} {text._sequences(TOKENS, 0)}"
        windows = [(torch.arange(n), torch.arange(n), n // 2) for n in (4, 4, 4, 2, 2, 4)]
        yield (
            f"batches {[(len(x), x.shape[1], keep.sum().item()) for x, _, keep in text._batched(windows, 2)]}"
        )

    check(RECORDED / "splits.txt", lines(), relative=2e-4, absolute=1e-5)


@pytest.mark.parametrize(("precision", "half"), [("fp32", False), ("bf16", True)])
def test_tasks_are_scored_in_the_precision_asked_for_and_losses_in_fp32(precision: str, half: bool):
    """In evaluation, whose end leaves the model as it was."""
    seen: list[tuple] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(4, 4)

        def forward(self, tokens, ctx, targets, right):
            seen.append((torch.is_autocast_enabled("cpu"), self.training, len(tokens)))
            found = linear_cross_entropy(self.embedding(tokens), torch.eye(4), targets, right=right)
            return found, {}

    tokens = np.arange(20).reshape(5, 4) % 4
    targets = np.full((5, 4), IGNORE)
    targets[:, 3] = tokens[:, 3]
    sequences = Sequences(tokens, targets, np.zeros((5, 4)))
    model = Model().train()
    score = score_sequences(model, sequences, chance=0.25, batch_size=2, precision=precision)
    assert seen == [(half, False, count) for count in (2, 2, 1)]
    assert score.nats.dtype == np.float64
    assert len(score.nats) == 5
    assert model.training


@pytest.mark.parametrize(
    ("targets", "share", "sequences"),
    [
        ([[1, 1, IGNORE], [1, 2, IGNORE]], 3 / 4, 1 / 2),
        ([[1, 1, 1], [IGNORE, IGNORE, 1]], 1.0, 1.0),
        ([[0, 2, IGNORE], [3, 1, IGNORE]], 1 / 4, 0.0),
    ],
)
def test_accuracies_are_shares_of_what_is_asked_and_of_sequences_without_a_mistake(targets, share, sequences):
    answers = torch.tensor(targets)
    found = accuracies(answers == 1, answers)
    assert (float(found["accuracy"]), float(found["sequence_accuracy"])) == (share, sequences)
    of_more = accuracies(answers == 1, answers, torch.tensor([2 * (answers >= 0).sum(), 4]))
    assert float(of_more["accuracy"]) == share / 2
