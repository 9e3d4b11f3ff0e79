"""A suite by its name: its table is written, failures are told, and a resumable one says whether it is finished."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.steady import tiny_config

from experiments.bench import result_table, run_suite
from experiments.runs import RunFailed


@pytest.fixture
def suite(monkeypatch) -> SimpleNamespace:
    made = SimpleNamespace(
        run=lambda config: made.rows, finished=lambda config: made.done, rows=[], done=True
    )
    monkeypatch.setattr(run_suite, "_load", lambda name: made if name == "steps" else pytest.fail(name))
    monkeypatch.setattr(
        torch, "set_num_threads", lambda threads: made.rows.append({"model": f"{threads} threads"})
    )
    return made


@pytest.mark.parametrize("own", [None, ["model", "error"]])
def test_a_suite_runs_with_the_threads_asked_for_and_leaves_its_table_also_where_a_row_has_an_error(
    suite, tmp_path: Path, own
):
    """With the suite's own columns, or those of all."""
    config = tiny_config(suite="steps", bench__out=str(tmp_path), trainer__threads=3)
    if own:
        suite.COLUMNS = own
        suite.rows += [{"model": "kda", "error": "no"}]
        with pytest.raises(RunFailed, match=r"1 of 2 failed; the table's column error says why"):
            run_suite.run_suite(config)
    else:
        run_suite.run_suite(config)
    with open(tmp_path / "steps.csv") as file:
        header, *rows = csv.reader(file)
    assert header == (own or result_table.COLUMNS)
    assert [dict(zip(header, row, strict=True))["model"] for row in rows][-1] == "3 threads"


def test_a_resumable_suite_says_itself_whether_it_is_finished(suite):
    for suite.done in (True, False):
        assert run_suite.is_finished(tiny_config(suite="steps")) is suite.done


def test_a_measured_row_has_columns_of_the_table_and_the_peers_time_over_its_own():
    row = result_table.row("steps", "kda", [4.0, 2.0, 3.0], 6.0, torch.device("cpu"), tokens=32)
    assert set(row) <= set(result_table.COLUMNS)
    assert (row["ratio"], row["batch"], row["tokens"]) == (2.0, 1, 32)
    times = [row[f"milliseconds_{name}"] for name in ("low", "median", "high")]
    assert times == [2.0, 3.0, 4.0]
