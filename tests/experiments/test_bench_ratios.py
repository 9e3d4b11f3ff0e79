"""What benchmarks compare with what: ratios and their summaries, with times given instead of taken."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from experiments.bench import result_table, timing
from experiments.bench.suites import harness
from experiments.bench.suites.cpu import lengths
from zoo import registry

CPU = torch.device("cpu")


def test_a_summary_has_the_median_the_lowest_and_the_highest():
    found = timing.summary([5.0, 1.0, 2.0, 9.0, 4.0])
    assert found == {"milliseconds_median": 4.0, "milliseconds_low": 1.0, "milliseconds_high": 9.0}


def test_alternatives_are_timed_in_turns_after_their_warm_up():
    order: list[str] = []
    calls = {name: (lambda n=name: order.append(n)) for name in "ab"}

    def clock(call, device):
        call()
        return float(len(order))

    times = timing.interleaved(calls, 2, CPU, warm_up=1, clock=clock)
    assert "".join(order) == "ab" + "abab"
    assert times == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_a_ratio_above_one_is_faster_than_its_peer():
    row = result_table.row("suite", "model", [2.0, 4.0, 3.0], 6.0, CPU)
    assert row["ratio"] == 2.0
    assert row["milliseconds_median"] == 3.0


def test_longer_sequences_are_compared_by_the_time_of_a_token(monkeypatch):
    """Four times the milliseconds for twice the tokens: a token takes twice as long."""
    given = {"16": [1.0], "32": [4.0], "64": [4.0]}
    monkeypatch.setattr(lengths.timing, "interleaved", lambda works, repeats, device: given)
    rows = lengths.run([16, 32, 64], 1)
    assert len(rows) == 3 * len(registry.blocks("mixer"))
    for row in rows:
        assert row["ratio"] == pytest.approx({16: 1.0, 32: 0.5, 64: 1.0}[row["tokens"]])


def test_an_interval_holds_19_of_20_medians_drawn_anew():
    """The median of five draws among 1 to 5 is 1 with probability 0.058 = Σ C(5, k)·0.2^k·0.8^(5−k), k from 3 on."""
    assert harness.bootstrap_interval([3.0, 1.0, 5.0, 2.0, 4.0]) == (1.0, 5.0)
    # Of eight 3s one 1 and one 5 are drawn into the median so rarely that they are no bounds.
    assert harness.bootstrap_interval([3.0] * 8 + [1.0, 5.0]) == (3.0, 3.0)


def test_tables_keep_six_digits_and_write_what_is_missing_as_nothing(tmp_path: Path):
    path = tmp_path / "folder" / "suite.csv"
    result_table.write([{"model": "a", "ratio": 1.23456789, "tokens": 12345678}, {"model": "b"}], path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["ratio"] for row in rows] == ["1.23457", ""]
    assert rows[0]["tokens"] == "12345678"


def test_times_are_in_milliseconds(monkeypatch):
    readings = iter((3.0, 3.25))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(readings))
    assert timing.on_device(lambda: None, CPU) == 250.0
