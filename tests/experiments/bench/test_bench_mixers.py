"""job=bench suite=mixers: mixers alone against full attention, in turns, as ratios with intervals."""

import csv

import pytest

from experiments.bench.run_suite import run_suite
from experiments.bench.suites import mixers
from experiments.configuration.schema import Config
from zoo import ModelConfig
from zoo.errors import UserError


def config(folder) -> Config:
    made = Config(device="cpu", suite="mixers", model=ModelConfig(d_model=32, n_heads=2))
    made.bench.cases, made.bench.lengths, made.bench.out = ["gsa", "nsa"], [16, 40], str(folder)
    made.bench.repeats = 2
    return made


@pytest.mark.long
def test_a_row_for_attention_and_each_mixer_at_each_length(tmp_path):
    run_suite(config(tmp_path))
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
    made = config(tmp_path)
    made.bench.lengths = [16]
    _, gsa, nsa = mixers.run(made)
    assert (gsa["ratio_low"], gsa["ratio"], gsa["ratio_high"]) == (0.5, 0.9, 2.0)
    assert nsa["ratio"] == 8
    assert all(call.args[1].shape == (1, 16, 32) and call.args[0].heads == 2 for call in timed.values())


def test_a_gpu_has_a_suite_of_its_own(tmp_path):
    made = config(tmp_path)
    made.device = "cuda"
    with pytest.raises(UserError, match="suite=models"):
        mixers.run(made)
