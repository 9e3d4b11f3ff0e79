"""suite=compile: kernels become machine code without a GPU, and one that does not is a row that says why."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.program import RUN

from experiments.bench.cases import CASES
from experiments.bench.suites import compile as suite
from experiments.configuration.schema import Config
from zoo.errors import UserError

ROOT = Path(RUN).parent

MISTAKEN = """
import torch, triton
import triton.language as tl

@triton.jit
def changes_its_type(x, n):
    value = n
    if n > 3:
        value = n.to(tl.int64)
    tl.store(x, value)
"""

COMPILES = """
import json, torch
from experiments.bench.suites.compile import _compiling
from mistaken import changes_its_type
rows = []
with _compiling(rows):
    changes_its_type[(1,)](torch.zeros(1), 7)
    changes_its_type[(1,)](torch.zeros(1), 7)
print(json.dumps(rows))
"""


def compiler(*command: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(cwd)])}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.mark.long
def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path):
    words = [
        "job=bench",
        "suite=compile",
        "bench.cases=[short_conv]",
        "bench.out=tables",
        "trainer.progress=false",
    ]
    done = compiler(str(RUN), *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "tables/compile.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["kernel"].rpartition(".")[2] for row in rows} >= {"_forward", "_backward", "_sum_rows"}
    assert all(int(row["registers"]) > 0 and row["error"] == "" for row in rows)


@pytest.mark.long
def test_a_kernel_that_does_not_compile_says_why(tmp_path):
    """What the interpreter does not see: Triton's variables keep their types in both branches."""
    (tmp_path / "mistaken.py").write_text(MISTAKEN)
    done = compiler("-c", COMPILES, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["kernel"] == "mistaken.changes_its_type"
    assert "value" in row["error"]
    assert "int64" in row["error"]


def test_every_case_is_compiled_at_its_own_length(monkeypatch):
    """Of a step one token; of others as many as launch every kernel."""
    lengths: list[int] = []
    monkeypatch.setattr(suite, "interpreted", lambda: False)
    monkeypatch.setattr(suite, "_compiling", lambda rows: contextlib.nullcontext())
    monkeypatch.setattr(
        suite,
        "_trace",
        lambda calls, with_backward: lengths.append((calls[0].arguments[0].shape[1], with_backward)),
    )
    config = Config()
    config.bench.cases, config.trainer.progress = ["path_attention", "short_conv"], False
    assert suite.run(config) == []
    assert lengths == [(CASES["path_attention"].compiled, True), (256, True), (1, False)]


def test_a_kernel_is_compiled_once_for_launches_alike(monkeypatch):
    def made(kernel, args, options):
        return SimpleNamespace(source=SimpleNamespace(hash=lambda: args[0]), options=options)

    monkeypatch.setattr(suite, "specialise", made)
    monkeypatch.setattr(suite, "_row", lambda kernel, launch, translate: {"of": launch.source.hash()})
    rows: list[dict] = []
    with suite._compiling(rows):
        from triton.runtime.jit import JITFunction

        for source, warps in (("a", 4), ("a", 4), ("b", 4), ("a", 8)):
            JITFunction.run(None, source, num_warps=warps)
    assert [row["of"] for row in rows] == ["a", "b", "a"]


def test_the_interpreter_compiles_nothing_and_says_so():
    with pytest.raises(UserError, match="unset TRITON_INTERPRET"):
        suite.run(Config())
