"""Scores of states that are carried over chunks and packed documents, against sums by hand; accuracies of tasks."""

import itertools
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.program import Lab

from experiments.costs import model_costs
from experiments.data import Sequences, Split
from experiments.data.tasks_base import IGNORE
from experiments.scoring.tasks import accuracies, score_sequences
from experiments.scoring.text import score_carried, score_split
from kernels import linear_cross_entropy
from zoo import LanguageModel, ModelConfig, UserError, cost
from zoo.model import on_meta


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


T, BOS, VOCAB = 12, 0, 29


def build(pattern: str) -> LanguageModel:
    """Random weights in fp64, scaled so that what the context is matters."""
    config = ModelConfig(pattern=pattern, depth=len(pattern), d_model=16, n_heads=2)
    made = LanguageModel(config, vocab_size=VOCAB, seq_len=T, seed=3).double()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return made.eval()


def split_of(*lengths: int) -> Split:
    """Documents of so many tokens, each behind its separator."""
    rng = np.random.default_rng(0)
    documents = [np.append(BOS, rng.integers(1, VOCAB, n)) for n in lengths]
    return Split(np.concatenate(documents).astype(np.uint16), 1, 1, len(lengths))


@torch.no_grad()
def nats_by_hand(model: LanguageModel, tokens: np.ndarray, starts: list[int]) -> float:
    """Σ −ln p of all tokens but the first, by one forward pass over each sequence; the one after it is scored too."""
    total = 0.0
    for begin, end in itertools.pairwise([*starts, len(tokens) - 1]):
        part = torch.from_numpy(tokens[begin : end + 1].astype(np.int64))
        logits, _ = model(part[None, :-1])
        total += float(F.cross_entropy(logits[0], part[1:], reduction="sum"))
    return total


@pytest.mark.parametrize("pattern", ["F", "K", "SF", "C", "M"])
def test_a_stream_scores_as_one_forward_pass_over_all_of_it(pattern: str):
    model, split = build(pattern), split_of(20, 31, 7)
    score = score_carried(model, split, batch_size=4)
    assert score.tokens == len(split.tokens) - 1
    assert score.nats == pytest.approx(nats_by_hand(model, split.tokens, [0]), rel=1e-6)
    windows = score_split(model, split, stride=T, batch_size=4)
    assert abs(windows.nats - score.nats) > 1e-3 * score.nats, "the history does not matter here"
    assert (score.stride, windows.stride) == (None, T)


@pytest.mark.parametrize("batch_size", [1, 2, 9])
@pytest.mark.parametrize("pattern", ["F", "K", "SF"])
def test_packed_documents_start_anew_whatever_stands_beside_them(pattern: str, batch_size: int):
    """Shorter and longer than a chunk, as long as two, of nothing but the separator."""
    model, split, told = build(pattern), split_of(30, 5, 0, 23, 11, 40), []
    starts = np.flatnonzero(split.tokens == BOS).tolist()
    score = score_carried(model, split, batch_size=batch_size, document_bos=BOS, progress=told.append)
    assert score.tokens == sum(told) == len(split.tokens) - 1
    assert score.nats == pytest.approx(nats_by_hand(model, split.tokens, starts), rel=1e-6)
    assert score.nats != pytest.approx(nats_by_hand(model, split.tokens, [0]), rel=1e-3)


def test_a_last_document_of_nothing_is_only_a_target():
    model, split = build("F"), split_of(5, 0)
    score = score_carried(model, split, batch_size=3, document_bos=BOS)
    assert score.nats == pytest.approx(nats_by_hand(model, split.tokens, [0]), rel=1e-6)


def test_a_cache_larger_than_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(model_costs, "_free_memory", lambda device: 1000)
    with pytest.raises(
        UserError, match=r"decode state of 30 tokens \(1 at once\) takes .*evaluate.carry=false"
    ):
        score_carried(build("F"), split_of(30), batch_size=3)


def test_the_documents_of_a_batch_have_their_caches_at_the_same_time(monkeypatch):
    """Memory for one and a half of them is enough for one after the other."""
    model, split = build("F"), split_of(30, 30)
    one = cost.state_bytes(on_meta(model.config, vocab_size=VOCAB, seq_len=T), 31)
    monkeypatch.setattr(model_costs, "_free_memory", lambda device: one * 3 // 2)
    score_carried(model, split, batch_size=1, document_bos=BOS)
    with pytest.raises(UserError, match=r"\(2 at once\)"):
        score_carried(model, split, batch_size=2, document_bos=BOS)


@pytest.mark.slow
def test_job_evaluate_carries_by_option(finished: Lab):
    words = ["job=evaluate", f"run={finished.run_folder()}", "evaluate.splits=[validation,test]"]
    windows, carried = finished.here(*words), finished.here(*words, "evaluate.carry=true")
    assert (windows.status, carried.status) == (0, 0), carried.err
    for line, other in zip(carried.out.splitlines(), windows.out.splitlines(), strict=True):
        assert "tokens, carried state)" in line
        scored, expected = (re.search(r"\(([\d,]+) tokens", text)[1] for text in (line, other))
        assert scored == expected
        assert re.findall(r"loss ([\d.]+)", line) != re.findall(r"loss ([\d.]+)", other)


def test_memory_that_a_gpu_has_not_is_told_and_other_errors_stay_what_they_are():
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    for error in (full, MemoryError("no room"), RuntimeError("can't allocate memory: 8 bytes")):
        with pytest.raises(UserError, match="a remedy"), model_costs.explaining_memory("a remedy"):
            raise error
    with pytest.raises(RuntimeError, match="shapes differ"), model_costs.explaining_memory("a remedy"):
        raise RuntimeError("shapes differ")
