"""The counted work of every benchmark case; a suite by its name writes its table and tells of failures."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.steady import tiny_config

from experiments.bench import result_table, run_suite
from experiments.bench.suites import attention
from experiments.runs import RunFailed

CPU = torch.device("cpu")


def test_every_backend_of_attention_is_timed_by_its_own_passes(monkeypatch):
    """And its peer is `torch`, wherever that stands among them."""
    ran: list[str] = []
    x = torch.ones(1, requires_grad=True)

    def interleaved(forms, repeats, device):
        for form in forms.values():
            form()
        return {name: [float(len(name))] for name in forms}

    call = SimpleNamespace(
        operation="attention",
        registry=SimpleNamespace(backends=["torch", "other one"]),
        tensors=lambda: [x],
        run=lambda backend: ran.append(backend) or 2 * x,
    )
    monkeypatch.setattr(attention.timing, "interleaved", interleaved)
    monkeypatch.setattr(attention.timing, "peak_memory", lambda form, device: 0)
    rows = attention._compare(call, 8, CPU, 1)
    assert ran == ["torch", "other one"] * 3, "once to see whether it serves, then in both modes"
    assert [row["ratio"] for row in rows if row["backend"] == "torch"] == [1.0, 1.0]


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
