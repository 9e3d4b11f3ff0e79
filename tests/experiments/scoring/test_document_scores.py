"""Scores by document add up to those of the split, and belong to the documents they are said to."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments.configuration.schema import Config
from experiments.data import Split
from experiments.scoring.text import by_document, score_split, write_documents
from experiments.training import train as training
from zoo import LanguageModel, ModelConfig


def test_sums_by_document_by_hand():
    tokens = np.array([9, 1, 2, 9, 3, 9, 4, 5])  # three documents; tokens 1 … 7 are scored
    losses = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    assert by_document(losses, tokens, 9).tolist() == [[3, 7.0], [2, 24.0], [2, 96.0]]
    assert by_document(losses, tokens[::-1], 9).sum(0).tolist() == [7, 127.0]


@pytest.mark.parametrize("stride", [3, 8])
def test_documents_add_up_to_the_split_whatever_the_windows(stride):
    model = LanguageModel(
        ModelConfig(pattern="F", depth=1, d_model=16, n_heads=2), vocab_size=11, seq_len=8, seed=1
    )
    tokens = np.random.default_rng(0).integers(1, 11, 60)
    tokens[[0, 20, 45]] = 0
    split = Split(tokens, 1, 1, 3)
    score = score_split(model, split, stride=stride, batch_size=4, separator=0)
    assert score.documents[:, 0].tolist() == [20, 25, 14]
    assert score.documents[:, 1].sum() == pytest.approx(score.nats)
    alone = score_split(
        model, Split(tokens[:21], 1, 1, 1), stride=stride, batch_size=4
    )  # its windows are the same
    assert score.documents[0, 1] == pytest.approx(alone.nats, rel=0.2)
    assert score_split(model, split, stride=stride, batch_size=4).documents is None


def test_splits_that_are_scored_later_are_added(tmp_path):
    write_documents(tmp_path, {"validation": np.array([[3, 0.1], [2, 1 / 3]])})
    write_documents(tmp_path, {"test": np.array([[5, 2.0]])})
    write_documents(tmp_path, {"validation": np.array([[3, 0.2]])})
    with (tmp_path / "documents.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["split", "document", "tokens", "nats"],
        ["test", "0", "5", "2.0"],
        ["validation", "0", "3", "0.2"],
    ]


def test_a_summary_keeps_what_was_scored_before(tmp_path, monkeypatch):
    """Each split with the version of the code that scored it, the ones of training included."""
    summary = {
        "seed": 3,
        "metrics": {"validation": {"loss": 1.0}, "test": {"loss": 2.0}},
        "scored_later": {"test": {"commit": "earlier", "finished": "then"}},
    }
    folder = SimpleNamespace(summary=lambda: summary, path=tmp_path)
    planned = SimpleNamespace(config=Config(device="cpu"), folder=folder, unscored=["train"])
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(training.data, "prepare", lambda *_, **__: None)
    monkeypatch.setattr(training.machine, "commit", lambda: ("now", False))
    monkeypatch.setattr(training, "score_best", lambda *given: {name: {"loss": 3.0} for name in given[5]})
    found = training.score_more(planned, None)
    assert found["seed"] == 3
    assert {name: m["loss"] for name, m in found["metrics"].items()} == {
        "validation": 1.0,
        "test": 2.0,
        "train": 3.0,
    }
    assert {name: note["commit"] for name, note in found["scored_later"].items()} == {
        "test": "earlier",
        "train": "now",
    }
