"""Scores of models whose weights are a formula: windows, packed documents, carried states, tasks; how they are said."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.recorded import check, flat
from support.steady import changed, refusal, set_by_formula, tiny_config

from experiments.configuration.schema import EvaluateConfig
from experiments.data import Sequences, Split, TaskSet, resolve_task
from experiments.data.tasks_base import IGNORE
from experiments.runs import write_splits
from experiments.scoring import evaluate, text
from experiments.scoring.evaluate import _check_words, _is_own, check_evaluate, with_options
from experiments.scoring.tasks import TaskScore, accuracies, score_sequences, write_answers
from experiments.scoring.text import by_document, write_documents
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


def test_scores_of_documents(tmp_path: Path):
    def lines() -> Iterator[str]:
        losses = np.arange(1.0, 10.0)
        for tokens in ([0, 1, 2, 0, 3, 0, 0, 4, 5, 6], [1, 2, 0, 3, 4, 5, 6, 7, 8, 0], [1] * 10):
            yield f"{tokens}: {by_document(losses, np.array(tokens), 0).tolist()}"
        write_documents(tmp_path, {"test": np.array([[2.0, 0.1], [3.0, 1 / 3]])})
        write_documents(tmp_path, {"validation": np.array([[1.0, 5.0]])})
        yield (tmp_path / "documents.csv").read_text()
        write_splits(
            tmp_path / "documents.csv", ("split", "document", "tokens", "nats"), {"test": [(9, 9, 9.0)]}
        )
        yield (tmp_path / "documents.csv").read_text()

    check(RECORDED / "documents.txt", lines())


def test_scores_of_a_task(tmp_path: Path):
    tokens = (np.arange(60) * 5 % 19).reshape(5, 12)
    targets = np.where(np.arange(60).reshape(5, 12) % 3 == 0, (tokens + 1) % 20, -100)
    sequences = Sequences(tokens, targets, np.where(targets >= 0, np.arange(60).reshape(5, 12) % 4, 0))

    def lines() -> Iterator[str]:
        model, told = _model(), []
        score = score_sequences(model.train(), sequences, chance=0.25, batch_size=2, progress=told.append)
        yield f"{told} training {model.training}"
        score_sequences(model.eval(), sequences, chance=0.25, batch_size=5)
        yield f"left in evaluation {not model.training}"
        yield from flat(score.metrics())
        given = TaskScore(
            np.array([0.5, 1.0, 2.0, 4.0, 0.25]),
            np.array([True, False, True, True, True]),
            np.array([0, 0, 1, 1, 3]),
            np.array([2, 5, 2, 7, 5]),
            np.array([1, 1, 3, 2, 3]),
            0.1,
        )
        yield from flat(given.metrics())
        for axis in ("position", "difficulty"):
            yield f"{axis}: {list(given.by(axis))}"
        write_answers(tmp_path, {"test": given})
        yield (tmp_path / "answers.csv").read_text()
        logits = torch.zeros(2, 3, 4)
        logits[:, :, 1] = 1.0
        for asked in (
            [[1, 1, -100], [1, 2, -100]],
            [[1, 1, 1], [-100, -100, 1]],
            [[0, 2, -100], [3, -100, -100]],
        ):
            yield (
                f"{asked}: "
                f"{ ({k: round(float(x), 6) for k, x in accuracies(logits, torch.tensor(asked)).items()}) }"
            )

    check(RECORDED / "tasks.txt", lines(), relative=2e-4, absolute=1e-6)


def test_which_sequences_of_a_task_are_scored(monkeypatch):
    """A finished run of a task: so many windows of every split, in its precision, on the options asked for."""
    data = resolve_task(
        changed(tiny_config().data, name="mqar", tokenizer="bpe", vocab_size=4096, seq_len=128)
    )
    scored: list[str] = []

    def score(model, sequences, **options):
        options.pop("progress")(sequences.tokens.size)
        scored.append(f"{model} {sequences.tokens.shape} {options}")
        return SimpleNamespace(metrics=lambda: {"loss": 1.0})

    monkeypatch.setattr(evaluate, "score_sequences", score)
    monkeypatch.setattr(evaluate, "task_of", lambda run: data)
    monkeypatch.setattr(evaluate, "load_model", lambda run, *_, **_how: f"model of {run}")

    def lines() -> Iterator[str]:
        for keys in (
            {},
            {"windows": 7, "splits": ["test"]},
            {"batch_size": 3},
            {"carry": True},
            {"stride": 4},
        ):
            options, told = changed(EvaluateConfig(), **keys), []
            asked = with_options(data, {"length": 40}) if "batch_size" in keys else data
            scored.clear()
            found = evaluate.task_scores(
                "run",
                asked,
                options,
                "auto",
                torch.device("cpu"),
                lambda *words, told=told: told.append(words),
            )
            yield f"{keys}: {refusal(lambda found=found: list(found))} {scored} {told}"

    check(RECORDED / "task_runs.txt", lines())


def test_how_scores_are_said():
    def lines() -> Iterator[str]:
        score = text.Score(12.5, 10, 4, 30, 8)
        yield from flat(score.metrics())
        yield text.format_metrics("test", score.metrics(), "book.txt · tokenizer bytes")
        yield text.format_metrics("test", text.Score(12.5, 1000, 4, 30, None).metrics(), "")
        yield (
            f"{text._exp(699.0):.6g} {text._exp(700.0)} "
            f"{math.isinf(text.Score(9999.0, 10, 1, 1, 1).metrics()['word_perplexity'])}"
        )
        task = {
            "accuracy": 0.98765,
            "answers": 12345,
            "chance": 0.03125,
            "sequence_accuracy": 0.5,
            "sequences": 1024,
            "loss": 0.123456,
        }
        yield text.format_metrics("validation", task, "mqar (length 32)")
        told = []
        add = text.count_scored(lambda *words: told.append(words), "test", 9)
        for count in (2, 3, 4):
            add(count)
        yield f"{told}"
        for options in (
            {},
            {"batch_size": 0},
            {"splits": []},
            {"splits": ["test", "tests"]},
            {"windows": 0},
            {"windows": 1},
            {"carry": True, "stride": 3},
            {"carry": True, "windows": 3},
            {"carry": True},
            {"splits": ["train"]},
        ):
            yield f"{options}: {refusal(check_evaluate, changed(EvaluateConfig(), **options))}"
        data = resolve_task(
            changed(tiny_config().data, name="mqar", tokenizer="bpe", vocab_size=4096, seq_len=128)
        )
        longer = with_options(data, {"length": 64, "pairs": 5})
        yield f"{TaskSet(longer).label} {longer.seq_len} {longer.vocab_size} {longer.tokenizer}"
        for options in ({}, {"length": 64}, {"vocab": 32}):
            yield f"{options}: {refusal(_check_words, data, TaskSet(with_options(data, options)).task)}"
        yield refusal(_check_words, None, TaskSet(data).task)
        loaded = SimpleNamespace(data=tiny_config().data, folder=Path("nowhere"))
        for keys in ({}, {"path": "x"}, {"name": "text"}, {"revision": "y"}, {"seq_len": 9}):
            yield f"{keys}: own {_is_own(loaded, changed(loaded.data, **keys))}"

    check(RECORDED / "words.txt", lines())


def test_windows_are_taken_in_order():
    windows = [(torch.tensor([n, n + 1]), torch.tensor([n + 1, n + 2]), 0) for n in range(5)]
    model, found = _model(), []
    nats, count = text.score_windows(model, itertools.islice(windows, 3), batch_size=2, losses=found)
    alone = [text.score_windows(model, [window], batch_size=1)[0] for window in windows[:3]]
    check(
        RECORDED / "windows.txt",
        [f"{count} {[len(part) for part in found]} {nats:.6f}", *(f"{one:.6f}" for one in alone)],
        relative=2e-4,
    )


@pytest.mark.parametrize(("precision", "half"), [("fp32", False), ("bf16", True)])
def test_tasks_are_scored_in_the_precision_asked_for_and_losses_in_fp32(precision: str, half: bool):
    """In evaluation, whose end leaves the model as it was."""
    seen: list[tuple] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(4, 4)

        def forward(self, tokens, ctx):
            logits = torch.nn.functional.linear(self.embedding(tokens), torch.eye(4))
            seen.append((logits.dtype == torch.bfloat16, self.training, len(tokens)))
            return logits, {}

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
