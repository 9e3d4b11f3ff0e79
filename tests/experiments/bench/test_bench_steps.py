"""suite=steps: presets step by step in turns, as ratios with intervals. suite=mixers: mixers alone."""

import csv

import pytest

from experiments.bench.run_suite import run_suite
from experiments.bench.suites import mixers, steps
from experiments.configuration.schema import Config
from zoo import ModelConfig
from zoo.cost import parameters_non_embedding
from zoo.errors import UserError


def config(folder) -> Config:
    made = Config(device="cpu", suite="steps", model=ModelConfig(d_model=32, n_heads=2, depth=2))
    made.bench.cases, made.bench.lengths, made.bench.out = ["nsa"], [16, 40], str(folder)
    made.data.tokenizer = "bytes"
    return made


@pytest.mark.slow
def test_a_row_for_the_transformer_and_each_preset_at_each_length(tmp_path):
    run_suite(config(tmp_path))
    rows = list(csv.DictReader((tmp_path / "steps.csv").open()))
    assert [(row["model"], row["tokens"], row["batch"]) for row in rows] == [
        (name, length, "1") for length in ("16", "40") for name in ("transformer", "nsa")
    ]
    for row in rows:
        assert 0 < float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"])
        assert (row["ratio"] == "1.0") == (row["model"] == "transformer")


def test_ratios_are_medians_of_pairs_of_models_that_are_matched(tmp_path, monkeypatch):
    timed: dict = {}

    def in_turns(calls, repeats, device, seconds):
        timed.update(calls)
        return {"transformer": [4.0, 9.0, 8.0], "nsa": [2.0, 10.0, 16.0]}

    monkeypatch.setattr(steps.timing, "interleaved_within", in_turns)
    made = config(tmp_path)
    made.bench.lengths, made.bench.tokens = [16], 50
    _, row = steps.run(made)
    assert row["batch"] == 3
    assert (row["ratio_low"], row["ratio"], row["ratio_high"]) == (0.5, 0.9, 2.0)
    plain, other = (parameters_non_embedding(step.model) for step in timed.values())
    assert other == pytest.approx(plain, rel=0.05)
    assert all(step.tokens.shape == (3, 16) for step in timed.values())


@pytest.mark.parametrize(("repeats", "rounds"), [(2, 5), (7, 7)])
def test_steps_are_taken_in_as_many_rounds_as_asked_for_and_five_at_least(
    tmp_path, monkeypatch, repeats: int, rounds: int
):
    asked: list[int] = []
    monkeypatch.setattr(steps, "matched_steps", lambda *_: {})
    monkeypatch.setattr(
        steps.timing, "interleaved_within", lambda calls, repeats, *_: asked.append(repeats) or {}
    )
    made = config(tmp_path)
    made.bench.lengths, made.bench.repeats = [16], repeats
    assert steps.run(made) == []
    assert asked == [rounds]


@pytest.mark.parametrize(("tokens", "batches"), [(None, [1, 1]), (80, [5, 2]), (20, [1, 1])])
def test_a_batch_has_about_the_tokens_asked_for_and_one_sequence_at_least(
    tmp_path, monkeypatch, tokens, batches
):
    """The transformer stands first, whatever else is asked for, and once."""
    asked: list[tuple] = []
    monkeypatch.setattr(
        steps, "_rows", lambda config, names, batch, device: asked.append((names, batch)) or []
    )
    made = config(tmp_path)
    for cases in (["nsa"], ["nsa", "transformer"]):
        made.bench.tokens, made.bench.cases, made.bench.lengths = tokens, cases, [16, 40]
        steps.run(made)
    assert asked == [(["transformer", "nsa"], batch) for batch in batches] * 2


def mixers_config(folder) -> Config:
    made = Config(device="cpu", suite="mixers", model=ModelConfig(d_model=32, n_heads=2))
    made.bench.cases, made.bench.lengths, made.bench.out = ["gsa", "nsa"], [16, 40], str(folder)
    made.bench.repeats = 2
    return made


@pytest.mark.long
def test_a_row_for_attention_and_each_mixer_at_each_length(tmp_path):
    run_suite(mixers_config(tmp_path))
    rows = list(csv.DictReader((tmp_path / "mixers.csv").open()))
    assert [(row["model"], row["tokens"]) for row in rows] == [
        (name, length) for length in ("16", "40") for name in ("attention", "gsa", "nsa")
    ]
    for row in rows:
        assert 0 < float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"])
        assert (row["ratio"] == "1.0") == (row["model"] == "attention")


def test_mixers_have_the_configured_width_and_a_ratio_above_one_is_faster(tmp_path, monkeypatch):
    timed: dict = {}

    def in_turns(calls, repeats, device, seconds):
        timed.update(calls)
        return {"attention": [4.0, 9.0, 8.0], "gsa": [2.0, 10.0, 16.0], "nsa": [1.0, 1.0, 1.0]}

    monkeypatch.setattr(mixers.timing, "interleaved_within", in_turns)
    made = mixers_config(tmp_path)
    made.bench.lengths = [16]
    _, gsa, nsa = mixers.run(made)
    assert (gsa["ratio_low"], gsa["ratio"], gsa["ratio_high"]) == (0.5, 0.9, 2.0)
    assert nsa["ratio"] == 8
    assert all(call.args[1].shape == (1, 16, 32) and call.args[0].heads == 2 for call in timed.values())


def test_a_gpu_has_a_suite_of_its_own(tmp_path):
    made = mixers_config(tmp_path)
    made.device = "cuda"
    with pytest.raises(UserError, match="suite=models"):
        mixers.run(made)
