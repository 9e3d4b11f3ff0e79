"""suite=compile: kernels of every case become machine code without a GPU, a row each."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import RUN

from experiments.bench.cases import CASES
from experiments.bench.suites import compile as suite
from experiments.configuration.schema import Config
from zoo.errors import UserError


@pytest.mark.long
def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path):
    words = [
        "job=bench",
        "suite=compile",
        "bench.cases=[short_conv]",
        "bench.out=tables",
        "trainer.progress=false",
    ]
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(RUN).parent)
    command = [sys.executable, str(RUN), *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "tables/compile.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["kernel"].rpartition(".")[2] for row in rows} >= {"_forward", "_backward", "_sum_rows"}
    for row in rows:
        assert (row["target"], row["error"]) == ("H200", "")
        assert all(int(row[name]) > 0 for name in ("registers", "launches", "argument_bytes"))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [(None, [CASES["path_attention"].compiled, 256, 1]), ([64, 128], [64, 128, 64, 128, 1])],
)
def test_every_case_is_compiled_at_its_own_length_or_those_asked_for(monkeypatch, lengths, expected):
    """Of a step one token; of others as many as launch every kernel."""
    seen: list[int] = []
    monkeypatch.setattr(suite, "check_compiler", lambda key, target: None)
    monkeypatch.setattr(suite, "_launches", lambda case, length, target: seen.append(length) or [target])
    monkeypatch.setattr(suite, "kernel_rows", lambda launches, gpu: [{"kernel": "k"}, {"kernel": gpu.name}])
    monkeypatch.setattr(suite, "_line", lambda row: "")
    config = Config()
    config.bench.cases, config.bench.lengths, config.trainer.progress = (
        ["path_attention", "short_conv"],
        lengths,
        False,
    )
    config.bench.target = "A100"
    rows = suite.run(config)
    assert seen == expected
    assert [row["tokens"] for row in rows] == [length for length in expected for _ in range(2)]
    first = {"model": "path_attention", "target": "A100", "tokens": expected[0], "kernel": "k"}
    assert rows[0] == first
    assert rows[1]["kernel"] == "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("name", "way"), [("short_conv", "forward_backward"), ("short_conv, a step", "forward")]
)
def test_a_case_is_launched_forward_and_backward_if_it_has_a_backward(monkeypatch, name: str, way: str):
    ways: list[tuple[str, list]] = []
    for each in ("forward", "forward_backward"):
        monkeypatch.setattr(suite, each, lambda form, leaves, each=each: ways.append((each, form())))
    monkeypatch.setattr(suite, "on_triton", lambda call: call.operation)
    case = CASES[name]
    assert suite._launches(case, case.length or 16, "H200") == []
    assert ways == [(way, ["short_conv"])]


def test_lines_of_kernels():
    row = {"kernel": "mesa._forward", "constants": "K=64 V=64", "warps": 4, "registers": 99, "stack_bytes": 8}
    row |= {"shared_bytes": 4096, "launches": 1, "error": ""}
    start = "mesa._forward [K=64 V=64; 4 warps]"
    assert suite._line(row) == f"{start}: 99 registers, 8 B stack, 4096 B shared, 1 launch"
    assert suite._line({**row, "launches": 2}).endswith("4096 B shared, 2 launches")
    assert suite._line({**row, "error": "no room"}) == f"FAILED {start}: no room"


def test_the_interpreter_compiles_nothing_and_says_so():
    with pytest.raises(UserError, match="unset TRITON_INTERPRET"):
        suite.run(Config())
