"""The counted work of every benchmark case; a suite by its name writes its table and tells of failures."""

import csv
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.recorded import check, flat
from support.steady import refusal, said, tiny_config

from experiments.bench import cases, memory_traffic, result_table, run_suite
from experiments.bench.suites import attention
from experiments.runs import RunFailed

RECORDED = Path(__file__).parent / "recorded"
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


def test_work_of_every_case():
    """Bytes, FLOPs and roofline of every case at two lengths, on every GPU, in both modes; what dry=true prints."""

    def lines() -> Iterator[str]:
        for name, case in cases.CASES.items():
            yield (
                f"{name}: {case.tokens} tokens, {case.length}, {case.backward}, {case.torch_limit}, "
                f"{case.compiled}"
            )
            for length in (256, 4096) if case.length is None else (case.length,):
                calls = case.calls(length, 2 * length, memory_traffic.META, torch.bfloat16)
                for call in calls:
                    shapes = [
                        f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in call.tensors()
                    ]
                    told = {k: v for k, v in call.options.items() if not isinstance(v, torch.Tensor | tuple)}
                    yield f"  {call.operation} {told}: {'; '.join(shapes)}"
                for mode in ("forward", "forward+backward"):
                    for gpu in memory_traffic.PEAKS:
                        total = memory_traffic.totals(calls, mode, memory_traffic.PEAKS[gpu])
                        yield f"  {length} {mode} {gpu}: {'; '.join(flat(total)) if total else 'not counted'}"
        yield from flat(memory_traffic.PEAKS)
        yield f"on a CPU: {memory_traffic.peaks_of(CPU)}; without peaks: {memory_traffic.totals(calls, mode, None)}"
        (single,) = cases.CASES["short_conv"].calls(64, 64, memory_traffic.META, torch.float32)
        yield from flat(memory_traffic.totals([single], "forward", memory_traffic.PEAKS["A100"]), "fp32")
        with said() as printed:
            memory_traffic.print_work(["cayley", "mesa, a", "hyper_p"], [64, 128], 512)
            memory_traffic.print_work(["short_conv"], [128], None, "A100")
        yield from printed
        for wanted in (None, ["mesa"], ["path", "cay"], ["nothing"], []):
            yield f"{wanted}: {refusal(cases.matching_names, wanted, list(cases.CASES))}"

    check(RECORDED / "work_of_cases.txt", lines())


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
