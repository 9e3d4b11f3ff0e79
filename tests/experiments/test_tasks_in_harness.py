"""Synthetic tasks through the program: trained, killed and resumed, scored, compared, reported; text is refused."""

import csv
import dataclasses
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.program import assert_same_run, later_wins
from support.task_lab import TaskLab

import experiments
from experiments.configuration.schema import Config
from experiments.data import DataConfig, TaskSet
from experiments.data.tasks_base import IGNORE
from experiments.planning.plan import plan
from experiments.probing import probe_run
from experiments.runs import read_metrics, recorded_data
from experiments.scoring.tasks import TaskScore, accuracies, score_sequences, write_answers
from experiments.training.lightning_modules import SyntheticTask
from zoo import LanguageModel, ModelConfig, UserError

LONG = pytest.mark.long


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_text: Path, shared_cache: Path) -> TaskLab:
    """A finished run that tests look at."""
    lab = TaskLab(tmp_path_factory.mktemp("task"), small_text, shared_cache)
    outcome = lab.done()
    assert "transformer mqar seed 0: " in outcome.out
    assert "of 64 answers right (chance 8.33%)" in outcome.out
    return lab


@pytest.mark.slow
def test_a_run_records_its_task_and_what_was_right(finished: TaskLab):
    folder = finished.run_folder()
    summary = json.loads((folder / "summary.json").read_text())
    options = {"length": 16, "pairs": 2, "vocab": 24, "power": 0.01, "fill": "blank"}
    assert summary["data"]["task"] == options
    assert summary["data"]["train"] == "mqar (length 16, pairs 2, vocab 24, power 0.01, fill blank)"
    assert summary["data"]["vocab_size"] == 24
    metrics = summary["metrics"]["test"]
    assert (metrics["answers"], metrics["sequences"], metrics["chance"]) == (64, 32, 1 / 12)
    assert set(metrics) == {"loss", "accuracy", "sequence_accuracy", "chance", "answers", "sequences"}
    card = json.loads((folder / "model.json").read_text())
    assert card["task"] == {"name": "mqar", "options": options}
    assert "tokenizer" not in card
    assert not (folder / "documents.csv").exists()


@pytest.mark.slow
def test_a_memory_remembers_as_many_sequences_as_a_run_trained_on(task_lab: TaskLab, monkeypatch):
    monkeypatch.setattr(TaskSet, "memorised", lambda _, sequences: sequences)
    task_lab.done("trainer.max_steps=3", "trainer.accumulate=2")
    summary = json.loads((task_lab.run_folder() / "summary.json").read_text())
    assert summary["data"]["memorised"] == 3 * 2 * 4  # steps, micro-batches and their sequences


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.slow
def test_a_run_of_a_task_is_scored_on_no_other_device_than_the_one_asked_for(finished: TaskLab, monkeypatch):
    outcome = without_tiny(monkeypatch, finished, "job=evaluate", "device=cuda")
    assert (outcome.status, outcome.out) == (2, "")
    assert "device=cuda, but PyTorch sees no CUDA device" in outcome.err


def test_rows_of_training_and_validation_have_accuracies(finished: TaskLab):
    rows = read_metrics(finished.run_folder() / "metrics.csv")
    assert [(row["step"], row["split"]) for row in rows] == [
        *[("2", "train"), ("3", "validation"), ("4", "train"), ("6", "train"), ("6", "validation")]
    ]
    for row in rows:
        assert 0 <= float(row["sequence_accuracy"]) <= float(row["accuracy"]) <= 1
        assert row["perplexity"] == ""
        assert math.isclose(float(row["loss"]), math.log(24), rel_tol=0.2)


def test_answers_by_position_and_difficulty_add_up(finished: TaskLab):
    with open(finished.run_folder() / "answers.csv") as file:
        rows = list(csv.DictReader(file))
    metrics = json.loads((finished.run_folder() / "summary.json").read_text())["metrics"]
    for split in ("validation", "test"):
        for axis in ("position", "difficulty"):
            found = [row for row in rows if (row["split"], row["axis"]) == (split, axis)]
            assert sum(int(row["answers"]) for row in found) == 64
            assert sum(int(row["right"]) for row in found) / 64 == metrics[split]["accuracy"]
            assert math.isclose(sum(float(row["nats"]) for row in found) / 64, metrics[split]["loss"])


@LONG
@pytest.mark.timeout(300)
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, small_text: Path, shared_cache: Path):
    whole, torn = (TaskLab(tmp_path / name, small_text, shared_cache) for name in ("whole", "torn"))
    length = ["trainer.max_steps=60", "data=permutations"]
    reference, process = whole.start(*length), torn.start(*length)
    while process.running and not list(torn.results.glob("*/*/checkpoints/step-0000001*.ckpt")):
        time.sleep(0.01)
    process.popen.kill()
    assert process.wait().status < 0
    assert not list(torn.results.glob("*/*/summary.json"))
    last = torn.run(*length)
    assert (last.status, reference.wait().status) == (0, 0), last
    assert_same_run(whole.run_folder(), torn.run_folder())


@pytest.mark.slow
def test_options_of_its_task_are_a_runs_identity():
    """Those of other tasks are not."""

    def name(task: str = "mqar", **options) -> str:
        config = Config()
        config.data.name = "mqar"
        setattr(config.data.tasks, task, dataclasses.replace(getattr(config.data.tasks, task), **options))
        return plan(config).run

    usual = name()
    assert name("parity", length=20) == usual
    assert len({usual, name(pairs=3), name(fill="values")}) == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("data.tokenizer=gpt2", "data.tokenizer=gpt2 does not apply to data=mqar"),
        pytest.param("data=mqarr", "did you mean 'mqar'?", marks=LONG),
    ],
)
def test_what_is_of_text_is_refused_before_anything_is_done(task_lab: TaskLab, words: str, says: str):
    outcome = task_lab.here(words)
    assert (outcome.status, says in outcome.err) == (2, True), outcome
    assert task_lab.left_behind() == []


@pytest.mark.slow
def test_probes_tell_where_attention_looks_for_an_answer(finished: TaskLab, monkeypatch):
    """Of one sequence the shares are sums over its attention map, where weights below 1e-3 are left out."""
    run = finished.run_folder()
    outcome = without_tiny(monkeypatch, finished, "job=probe", "probe.windows=1")
    assert outcome.status == 0, outcome
    task_set = TaskSet(recorded_data(run / "config.yaml"))
    tokens, targets, _ = (field[0] for field in dataclasses.astuple(task_set.held_out("validation").first(1)))
    questions = np.flatnonzero(targets != IGNORE)
    measures = [row for row in probe_run.read(run, "measures") if row[8].startswith("answer_")]
    maps = [row for row in probe_run.read(run, "maps") if row[3] == "attention"]
    for head in (0, 1):
        looked = sum(
            weight
            for _, _, of, _, t, s, weight in maps
            if of == head and tokens[s] == targets[t] and t in questions
        )
        found = {row[8]: (row[9], row[10]) for row in measures if row[4] == head}
        assert found["answer_mass"] == (pytest.approx(looked / 2, abs=0.01), 2)
        assert found["answer_uniform"] == (pytest.approx(np.mean(1 / (questions + 1))), 2)
    assert [row[2] for row in probe_run.read(run, "sentence")] == [task_set.task.word(x) for x in tokens]


def without_tiny(monkeypatch, lab: TaskLab, *words: str):
    """A command on the run of the lab, which knows its own task."""
    own = ["device=cpu", "trainer.progress=false", f"run={lab.run_folder()}"]
    monkeypatch.setattr(TaskLab, "arguments", lambda self, *more: later_wins([*own, *more]))
    return lab.here(*words)


@pytest.mark.slow
def test_a_finished_run_is_scored_again_and_on_longer_sequences(finished: TaskLab):
    run = finished.run_folder()
    recorded = json.loads((run / "summary.json").read_text())["metrics"]
    again = experiments.evaluate(run, windows=32, device="cpu")
    assert {name: {k: v for k, v in m.items() if k != "text"} for name, m in again.items()} == recorded
    longer = DataConfig(name="mqar")
    longer.tasks.mqar.length, longer.tasks.mqar.pairs, longer.tasks.mqar.vocab = 40, 5, 24
    found = experiments.evaluate(run, longer, splits=["test"], windows=10, device="cpu")["test"]
    assert (found["answers"], found["text"]) == (
        50,
        "mqar (length 40, pairs 5, vocab 24, power 0.01, fill blank)",
    )
    for options, says in (
        ({"text": "book.txt"}, "cannot be scored on text"),
        ({"carry": True}, "evaluate.carry=True works for text only"),
        ({"stride": 4}, "evaluate.stride=4 works for text only"),
        ({"text": DataConfig(name="mqar")}, "other tokens than those that the run was trained on"),
    ):
        with pytest.raises(UserError, match=says):
            experiments.evaluate(run, device="cpu", **options)


def test_scores_are_those_of_a_count_by_hand():
    model = LanguageModel(ModelConfig(pattern="F", depth=1, d_model=16, n_heads=2), vocab_size=64, seq_len=32)
    sequences = TaskSet(DataConfig(name="mqar")).held_out("test").first(20)
    score = score_sequences(model, sequences, chance=0.1, batch_size=7)
    logits, _ = model(torch.from_numpy(sequences.tokens))
    right, nats, whole = [], [], []
    for row in range(20):
        places = [t for t in range(32) if sequences.targets[row, t] != IGNORE]
        answers = [int(sequences.targets[row, t]) for t in places]
        found = logits[row, places].argmax(-1).tolist()
        nats += [-logits[row, t].log_softmax(-1)[a].item() for t, a in zip(places, answers, strict=True)]
        right += [a == b for a, b in zip(found, answers, strict=True)]
        whole.append(found == answers)
    metrics = score.metrics()
    assert metrics["accuracy"] == np.mean(right)
    assert metrics["sequence_accuracy"] == np.mean(whole)
    assert math.isclose(metrics["loss"], np.mean(nats), rel_tol=1e-5)
    targets = torch.from_numpy(sequences.targets)
    batch = accuracies(logits.argmax(-1) == targets, targets)
    assert math.isclose(float(batch["accuracy"]), np.mean(right), rel_tol=1e-6)
    assert float(batch["sequence_accuracy"]) == np.float32(np.mean(whole))


def test_a_sequence_counts_only_if_all_of_it_is_right(tmp_path: Path):
    right = np.array([True, True, True, False, True])
    score = TaskScore(
        np.arange(5.0), right, np.array([0, 0, 1, 1, 2]), np.array([1, 3, 1, 3, 1]), np.arange(5), 0.5
    )
    assert (score.metrics()["accuracy"], score.metrics()["sequence_accuracy"]) == (0.8, 2 / 3)
    assert list(score.by("position")) == [(1, 3, 3, 6.0), (3, 2, 1, 4.0)]
    write_answers(tmp_path, {"test": score})
    write_answers(tmp_path, {"validation": score})
    lines = (tmp_path / "answers.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * (2 + 5)
    assert "test,position,3,2,1,4.0" in lines


def test_only_answers_are_learned():
    """The loss and its gradient are those of the answers: other targets have no part in them."""
    config = Config()
    model = LanguageModel(ModelConfig(pattern="F", depth=1, d_model=16, n_heads=2), vocab_size=64, seq_len=32)
    batches = TaskSet(DataConfig(name="mqar")).batches(0)
    task, batch = SyntheticTask(model, config, batches, {}), batches.batch(0)
    loss, _, measured = task.losses(batch)
    logits, _ = model(batch["tokens"])
    asked = batch["targets"] != IGNORE
    by_hand = -logits.log_softmax(-1)[asked].gather(-1, batch["targets"][asked][:, None]).mean()
    assert torch.allclose(loss, by_hand)
    assert set(measured) == {"accuracy", "sequence_accuracy"}


@pytest.mark.slow
def test_a_tiny_transformer_learns_the_values_of_mqar(task_lab: TaskLab):
    """From ln 24 to below ln 12, which takes knowing that values are asked for."""
    outcome = task_lab.here(
        "model.d_model=32", "model.depth=2", "data.batch_size=16", "trainer.max_steps=60", "optim.lr=0.01",
        "optim.lr_min=0.001", "trainer.val_every=60", "trainer.log_every=20", "trainer.checkpoint_every=60",
    )  # fmt: skip
    assert outcome.status == 0, outcome
    losses = [float(row["loss"]) for row in read_metrics(task_lab.run_folder() / "metrics.csv")]
    assert losses[-1] < math.log(12) + 0.02 < losses[0]
