"""Failures that cannot be recorded, and texts that have moved."""

import dataclasses
import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import runs
from experiments.data import DataConfig
from experiments.runs import LoadedRun, RunFolder, load_corpus
from zoo.tokenization import ByteTokenizer


def test_a_failure_that_cannot_be_recorded_is_not_hidden_by_another(tmp_path: Path, monkeypatch):
    """Where the disk is full the error of the run itself is what its command tells."""

    def full(path: Path, values: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "write_json", full)
    RunFolder(tmp_path).fail(ValueError("the run's own"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["path", "train_path", "gpt2_path", "cache_dir"])
def test_a_text_that_moved_is_read_where_the_command_says(tmp_path: Path, monkeypatch, key: str):
    own, tokenizer = DataConfig(path="a", train_path="b", gpt2_path="c"), ByteTokenizer()
    monkeypatch.setattr(runs.data, "check", lambda asked: None)
    monkeypatch.setattr(
        runs.data,
        "prepare",
        lambda asked, progress: SimpleNamespace(config=asked, tokenizer=tokenizer),
    )
    found = load_corpus(LoadedRun(None, tokenizer, tmp_path, own), DataConfig(**{key: "moved"}))
    assert found.config == dataclasses.replace(own, **{key: "moved"})
