"""What benchmarks compare with what: ratios and their summaries, with times given instead of taken."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments.bench import result_table, timing
from experiments.bench.suites import attention, cpu, harness
from experiments.configuration.compose import architectures
from experiments.configuration.schema import Config
from zoo import ModelConfig
from zoo.cost import parameters_non_embedding

CPU = torch.device("cpu")


def test_a_summary_has_the_median_the_lowest_and_the_highest():
    found = timing.summary([5.0, 1.0, 2.0, 9.0, 4.0])
    assert found == {"milliseconds_median": 4.0, "milliseconds_low": 1.0, "milliseconds_high": 9.0}


def test_a_ratio_above_one_is_faster_than_its_peer():
    row = result_table.row("suite", "model", [2.0, 4.0, 3.0], 6.0, CPU)
    assert row["ratio"] == 2.0
    assert row["milliseconds_median"] == 3.0


def test_inputs_of_attention_are_those_of_the_seed():
    first, again, other = (attention._calls(Config(seed=seed), 8, CPU)[0].arguments[0] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class _Attention:
    """A pretended call of attention with four backends, of which one refuses and one has too little memory."""

    operation = "attention"
    registry = SimpleNamespace(backends=("torch", "reference", "refuses", "full"))

    def tensors(self):
        return iter([torch.ones(1, requires_grad=True)])

    def run(self, backend: str):
        if backend == "refuses":
            raise ValueError("refuses cannot serve this call")
        if backend == "full":
            raise torch.OutOfMemoryError


@pytest.mark.parametrize(
    ("length", "timed"),
    [
        (attention.REFERENCE_LIMIT, ["torch", "reference"]),
        (attention.REFERENCE_LIMIT + 1, ["torch"]),
    ],
)
def test_attention_is_timed_by_what_can_serve_and_by_its_definition_where_that_is_short(
    monkeypatch, length: int, timed: list[str]
):
    times = {"torch": [2.0], "reference": [4.0]}
    monkeypatch.setattr(
        attention.timing, "interleaved", lambda forms, *_: {name: times[name] for name in forms}
    )
    monkeypatch.setattr(attention.timing, "peak_memory", lambda call, device: None)
    rows = attention._compare(_Attention(), length, CPU, 1)
    assert [row["backend"] for row in rows] == 2 * timed
    assert {row["backend"]: row["ratio"] for row in rows} == {name: 2.0 / times[name][0] for name in timed}


@pytest.mark.slow
def test_presets_are_compared_at_equally_many_parameters(monkeypatch):
    """Of one width, the largest has a quarter more of them than the transformer."""
    timed: dict = {}

    def interleaved(works, repeats, device):
        timed.update(works)
        return {name: [4.0 if name == "transformer" else 5.0] for name in works}

    monkeypatch.setattr(cpu.timing, "interleaved", interleaved)
    config = Config(device="cpu", model=ModelConfig(d_model=64, n_heads=4, depth=2))
    config.data.seq_len, config.data.batch_size, config.data.tokenizer = 16, 2, "bytes"
    rows = cpu.run_training_steps(config)
    assert {row["model"]: row["ratio"] for row in rows} == {
        name: pytest.approx(1.0 if name == "transformer" else 0.8) for name in architectures(config.model)
    }
    sizes = {name: parameters_non_embedding(step.model) for name, step in timed.items()}
    for name, size in sizes.items():
        assert size == pytest.approx(sizes["transformer"], rel=0.01), name


def test_the_harness_is_compared_pair_by_pair_with_the_bare_loop(monkeypatch, capsys):
    """A quarter slower in the median pair: 1.25 times the time, or a ratio of 0.8, where above 1 is faster."""
    bare, alone, ours = iter([0.2, 0.4, 0.8]), iter([0.2, 0.4, 0.8]), iter([0.25, 0.8, 0.8])
    monkeypatch.setattr(harness.data, "prepare", lambda config: None)
    monkeypatch.setattr(harness, "_long_steps", lambda config, corpus, device: config)
    monkeypatch.setattr(harness, "_bare", lambda *_: next(bare))
    monkeypatch.setattr(harness, "_lightning", lambda *_: next(alone))
    monkeypatch.setattr(harness, "_harness", lambda *_: next(ours))
    config = Config(device="cpu")
    config.bench.steps, config.bench.pairs, config.bench.cases = 4, 3, ["steps"]
    found = {row["model"]: row for row in harness.run(config)}
    assert {name: row["ratio"] for name, row in found.items()} == {
        "bare loop": 1.0,
        "lightning alone": 1.0,
        "harness": 0.8,
    }
    columns = ("milliseconds_low", "milliseconds_median", "milliseconds_high")
    assert [found["bare loop"][key] for key in columns] == [50.0, 100.0, 200.0]
    assert [found["harness"][key] for key in columns] == [62.5, 200.0, 200.0]
    assert (
        "harness: median 1.2500x the bare loop, 95 % interval 1.0000 to 2.0000 (3 pairs of 4 steps"
        in capsys.readouterr().out
    )


@pytest.mark.slow
def test_the_bare_loop_and_the_harness_train_the_same_model(lab, monkeypatch):
    """Real loops of two steps, timed once each: what they leave is equal, so their times are of the same work."""
    made, make = [], harness._task
    monkeypatch.setattr(harness, "STEP_MS", 0.0)  # a tiny model's batch is not made larger
    monkeypatch.setattr(harness, "_task", lambda *given: made.append(make(*given)) or made[-1])
    lab.done("job=bench", "bench.steps=2", "bench.pairs=1", "bench.cases=[steps]")
    assert (lab.results / "bench" / "harness.csv").is_file()
    probed, bare, _, ours = (task.model for task in made)  # Lightning alone has no schedule
    torch.testing.assert_close(bare.state_dict(), ours.state_dict())
    assert not torch.equal(bare.embedding.weight, probed.embedding.weight)  # which took a step more


@pytest.mark.long
def test_commands_are_timed_as_processes_in_turns_with_an_import(lab):
    lab.done("job=bench", "bench.repeats=1", "bench.cases=[refused]")
    rows = list(csv.DictReader((lab.results / "bench" / "harness.csv").read_text().splitlines()))
    names = ["import torch", "refused key"]
    modes = ("processor time", "wall time")
    assert [(row["model"], row["mode"]) for row in rows] == [(name, mode) for name in names for mode in modes]
    assert all(float(row["milliseconds_median"]) > 10 for row in rows)
    assert all(float(row["ratio"]) == 1 for row in rows[:2])
    assert "unknown bench.cases 'halp'" in lab.refused("job=bench", "bench.cases=[halp]")


def test_an_interval_holds_19_of_20_medians_drawn_anew():
    """The median of five draws among 1 to 5 is 1 with probability 0.058 = Σ C(5, k)·0.2^k·0.8^(5−k), k from 3 on."""
    assert timing.bootstrap_interval([3.0, 1.0, 5.0, 2.0, 4.0]) == (1.0, 5.0)
    # Of eight 3s one 1 and one 5 are drawn into the median so rarely that they are no bounds.
    assert timing.bootstrap_interval([3.0] * 8 + [1.0, 5.0]) == (3.0, 3.0)


def test_tables_keep_six_digits_and_write_what_is_missing_as_nothing(tmp_path: Path):
    path = tmp_path / "folder" / "suite.csv"
    result_table.write([{"model": "a", "ratio": 1.23456789, "tokens": 12345678}, {"model": "b"}], path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["ratio"] for row in rows] == ["1.23457", ""]
    assert rows[0]["tokens"] == "12345678"


def test_ratios_are_of_pairs():
    assert timing.ratios([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize(("milliseconds", "further"), [(1.0, 7), (4999.0, 7), (5000.0, 1), (1e5, 1)])
def test_a_recurrence_that_takes_seconds_is_timed_twice_and_no_more(milliseconds, further, monkeypatch):
    """In turns with its form, which is timed as often."""
    rounds = []

    def interleaved(forms, repeats, device, warm_up):
        rounds.append(repeats)
        return {name: [milliseconds if name == "reference" else 1.0] * repeats for name in forms}

    monkeypatch.setattr(cpu.timing, "interleaved", interleaved)
    monkeypatch.setattr(cpu, "OPERATIONS", {"delta_rule": cpu.OPERATIONS["delta_rule"]})
    cpu.run_recurrences(3, 7)
    assert rounds == [1, further] * len(cpu.MODES)
