"""job=evaluate on any text; scores by document add up to those of the split."""

import csv
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.program import Lab, write_text

import experiments
import zoo
from experiments.configuration.schema import Config, EvaluateConfig
from experiments.data import DataConfig, Split
from experiments.data.tokenizers import train
from experiments.runs import LoadedRun
from experiments.scoring import evaluate as evaluation
from experiments.scoring.evaluate import read_splits
from experiments.scoring.text import by_document, score_split, write_documents
from experiments.training import train as training
from zoo import LanguageModel, ModelConfig
from zoo.errors import UserError
from zoo.tokenization import ByteTokenizer


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_text(tmp_path / "other.txt", paragraphs=3, seed=5)


def by_hand(folder: Path, text: str, windows: int | None = None) -> dict:
    """Scores of bytes behind one separator, the whole text as one split."""
    tokens = np.array([256, *text.encode()], np.uint16)
    split = Split(tokens, len(text.split()) + text.count("\n"), len(text.encode()), 1)
    return score_split(zoo.load(folder), split, stride=16, batch_size=16, windows=windows).metrics()


def test_a_text_is_the_runs_own_by_what_names_it_and_not_by_how_it_is_cut(tmp_path: Path):
    own = DataConfig(name="wikitext103", path="a", train_path="b", revision="c")
    loaded = LoadedRun(None, None, tmp_path, own)
    for key in ("name", "path", "text_column", "train_path", "revision"):
        assert not evaluation._is_own(loaded, dataclasses.replace(own, **{key: "other"})), key
    assert evaluation._is_own(loaded, dataclasses.replace(own, seq_len=7, batch_size=3, tokenizer="bytes"))


@pytest.mark.slow
def test_another_text_is_scored_whole_with_the_runs_tokenizer(finished: Lab, other: Path):
    folder = finished.run_folder()
    expected = by_hand(folder, other.read_text())
    found = experiments.evaluate(folder, other)
    assert found == {"text": {**expected, "text": "other.txt", "tokenizer": "bytes"}}
    outcome = finished.done("job=evaluate", f"run={folder}", f"data.path={other}")
    (line,) = outcome.out.splitlines()
    assert line.startswith(f"text: loss {expected['loss']:.4f} nats/token")
    assert line.endswith("· other.txt · tokenizer bytes")


@pytest.mark.slow
def test_splits_of_a_data_set_are_read_alone(finished: Lab, other: Path, tmp_path: Path):
    text = other.read_text()
    pq.write_table(
        pa.table({"text": [f"{line}\n" for line in text.splitlines()]}), tmp_path / "test-0.parquet"
    )
    folder, place = finished.run_folder(), f"data.path={tmp_path}"
    outcome = finished.here(
        "job=evaluate", f"run={folder}", "data=wikitext2", place, "evaluate.splits=[test]"
    )
    assert outcome.status == 0, outcome.err
    assert f"loss {by_hand(folder, text)['loss']:.4f}" in outcome.out
    name = f"test-0 ({len(text.splitlines())} rows, not as published)"
    assert outcome.out.rstrip().endswith(f"· {name} · tokenizer bytes")
    missing = finished.here(
        "job=evaluate", f"run={folder}", "data=wikitext2", place, "evaluate.splits=[validation]"
    )
    assert (missing.status, missing.out) == (2, "")
    assert "no validation-*.parquet" in missing.err


def test_each_split_of_another_text_is_named_as_its_own(other: Path, tmp_path: Path):
    for split in ("validation", "test"):
        pq.write_table(pa.table({"text": [other.read_text()]}), tmp_path / f"{split}-0.parquet")
    cfg = DataConfig(name="wikitext2", path=str(tmp_path))
    found = [(one.name, one.text) for one in read_splits(cfg, ["validation", "test"], ByteTokenizer())]
    assert found == [
        ("validation", "validation-0 (1 row, not as published)"),
        ("test", "test-0 (1 row, not as published)"),
    ]


def test_tokens_are_those_of_the_saved_tokenizer_whatever_the_text(other: Path):
    tokenizer = train(["vowels and consonants " * 20], 300)
    cfg = DataConfig(name="text", path=str(other), tokenizer="bpe", vocab_size=4096)
    (one,) = read_splits(cfg, ["test"], tokenizer)
    assert one.split.tokens.tolist() == [tokenizer.bos_id, *tokenizer.encode(other.read_text())]
    assert one.split.n_bytes == len(other.read_bytes())


def test_the_tokenizer_of_a_run_needs_no_harness(finished: Lab, tmp_path: Path):
    folder = finished.run_folder()
    for place in (folder, max((folder / "checkpoints").glob("*.ckpt"))):
        tokenizer = zoo.tokenizer(place)
        assert tokenizer.name == "bytes"
        assert tokenizer.decode(tokenizer.encode("théta")) == "théta"
    with pytest.raises(UserError, match="no model at"):
        zoo.tokenizer(tmp_path)
    model = json.loads((folder / "model.json").read_text())
    for saved, says in ((None, "no tokenizer was saved"), ("{}", "is damaged")):
        (tmp_path / "model.json").write_text(json.dumps({**model, "tokenizer": saved}))
        with pytest.raises(UserError, match=says):
            zoo.tokenizer(tmp_path)


def test_the_first_windows_alone_can_be_scored(finished: Lab, other: Path):
    folder, text = finished.run_folder(), other.read_text()
    found = experiments.evaluate(folder, other, stride=32, windows=2)["text"]
    tokens = np.array([256, *text.encode()][:65], np.uint16)
    start = score_split(zoo.load(folder), Split(tokens, 1, 1, 1), stride=32, batch_size=16).metrics()
    assert (found["tokens"], found["loss"]) == (64, pytest.approx(start["loss"], rel=1e-6))
    share = 64 / len(text.encode())
    assert (found["bytes"], found["words"]) == (64, round(share * (len(text.split()) + text.count("\n"))))
    whole = experiments.evaluate(folder, other, stride=32)["text"]
    assert whole == experiments.evaluate(folder, other, stride=32, windows=10_000)["text"]


@pytest.mark.slow
def test_runs_may_be_scored_by_the_documents_protocol(lab: Lab):
    lab.arguments = lambda *words: ["+experiment=wikitext103", *words]
    (config,) = lab.compose()
    assert (config.data.seq_len, config.evaluate.stride, config.evaluate.windows) == (512, 512, 552)


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        (None, [], "no such file or folder"),
        (b" \n", [], "is empty"),
        (b"caf\xe9 au lait", [], "is not UTF-8 text: byte 3 is 0xe9"),
        (b"short", [], "has 5 tokens of bytes, and a window of the model has 32; give more text"),
        (b"x" * 99, ["evaluate.windows=0"], "evaluate.windows=0 must be at least 1"),
        (b"x" * 99, ["evaluate.windows=2", "evaluate.carry=true"], "evaluate.windows=2 applies to windows"),
        (b"x" * 99, ["evaluate.stride=33"], "must be from 1 to the model's length 32"),
        (b"x" * 99, ["data=wikitext3"], "wikitext3"),
    ],
)
def test_text_that_cannot_be_scored_is_refused(finished: Lab, tmp_path: Path, content, words, says):
    place = tmp_path / "text.txt"
    if content is not None:
        place.write_bytes(content)
    outcome = finished.here("job=evaluate", f"run={finished.run_folder()}", f"data.path={place}", *words)
    assert (outcome.status, outcome.out) == (2, "")
    assert says in outcome.err


@pytest.mark.parametrize(("characters", "enough"), [(7, False), (8, True)])
def test_a_text_fills_a_window_with_its_separator_before_and_a_target_behind(tmp_path, characters, enough):
    """A window of 8 has 9 tokens with its last target, of which the separator is the first."""
    (tmp_path / "short.txt").write_text("x" * characters)
    loaded = LoadedRun(SimpleNamespace(seq_len=8), ByteTokenizer(), tmp_path, DataConfig())
    text, options = DataConfig(name="text", path=str(tmp_path / "short.txt")), EvaluateConfig()
    if enough:
        (one,) = evaluation._splits(loaded, text, options, None)
        assert len(one.split.tokens) == 9
    else:
        with pytest.raises(UserError, match="has 7 tokens"):
            list(evaluation._splits(loaded, text, options, None))


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
