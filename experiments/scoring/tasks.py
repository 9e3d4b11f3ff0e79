"""Scoring a synthetic task: the loss of its answers, the shares of right answers and of sequences right throughout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.data import Sequences
from experiments.data.tasks_base import IGNORE
from experiments.runs import write_splits
from zoo.context import Context
from zoo.model import LanguageModel

FILE = "answers.csv"
COLUMNS = ("split", "axis", "value", "answers", "right", "nats")


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """The answers of a model, each field [A] over all of them.

    nats: −ln p of the right answer; right: whether it was the likeliest token; sequence, position: where it was asked
    for; difficulty: see `Task.hardness`. chance: Task.chance.
    """

    nats: np.ndarray
    right: np.ndarray
    sequence: np.ndarray
    position: np.ndarray
    difficulty: np.ndarray
    chance: float

    def metrics(self) -> dict[str, float | int]:
        """loss: nats an answer; accuracy: right answers' share; sequence_accuracy: of sequences without a wrong one."""
        asked, wrong = np.unique(self.sequence), np.unique(self.sequence[~self.right])
        return {
            "loss": float(self.nats.mean()),
            "accuracy": float(self.right.mean()),
            "sequence_accuracy": (len(asked) - len(wrong)) / len(asked),
            "chance": self.chance,
            "answers": len(self.nats),
            "sequences": len(asked),
        }

    def by(self, axis: str) -> Iterator[tuple[int, int, int, float]]:
        """Value, answers, right ones and their nats, for every value of "position" or "difficulty", ascending."""
        values, place = np.unique(getattr(self, axis), return_inverse=True)
        sums = (np.bincount(place, weights) for weights in (None, self.right, self.nats))
        for value, answers, right, nats in zip(values, *sums, strict=True):
            yield int(value), int(answers), int(right), float(nats)


@torch.no_grad()
def score_sequences(
    model: LanguageModel,
    sequences: Sequences,
    *,
    chance: float,
    batch_size: int,
    precision: str = "fp32",
    progress: Any = None,
) -> TaskScore:
    """Score a model in evaluation mode on held-out sequences; progress: called with the tokens of each batch."""
    training = model.training
    model.eval()
    nats, right = [], []
    try:
        for start in range(0, len(sequences.tokens), batch_size):
            tokens, targets = (
                torch.from_numpy(x[start : start + batch_size]).to(model.embedding.weight.device)
                for x in (sequences.tokens, sequences.targets)
            )
            with torch.autocast(tokens.device.type, torch.bfloat16, enabled=precision == "bf16"):
                (_, losses, is_right), _ = model(tokens, Context.of(tokens), targets, right=True)
            asked = targets != IGNORE
            nats.append(losses[asked].double().cpu())
            right.append(is_right[asked].cpu())
            if progress is not None:
                progress(tokens.numel())
    finally:
        model.train(training)
    sequence, position = np.nonzero(sequences.targets != IGNORE)
    answers = [torch.cat(parts).numpy() for parts in (nats, right)]
    return TaskScore(*answers, sequence, position, sequences.difficulty[sequence, position], chance)


def accuracies(right: Tensor, targets: Tensor, of: Tensor | None = None) -> dict[str, Tensor]:
    """Share of right answers of a batch, right bool [B, T] and targets [B, T], and of sequences without a wrong one.

    of: int64 [2], answers and sequences that they are shares of; None: the batch's.
    """
    asked = targets != IGNORE
    answers, sequences = (asked.sum(), len(targets)) if of is None else of
    return {
        "accuracy": (right & asked).sum() / answers,
        "sequence_accuracy": (right | ~asked).all(-1).sum() / sequences,
    }


def write_answers(folder: Path, scored: dict[str, TaskScore]) -> None:
    """Write the rows of these splits into RUN/answers.csv, atomically; those of other splits stay.

    Columns: split; axis, "position" or "difficulty"; value, of the axis; answers there; right, how many were; nats,
    the sum of −ln p of the right answers.
    """
    rows = {
        split: [(axis, *row) for axis in ("position", "difficulty") for row in score.by(axis)]
        for split, score in scored.items()
    }
    write_splits(folder / FILE, COLUMNS, rows)
