"""Counts of kernels do not depend on what empty memory happens to hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.program import RUN

from experiments.bench.memory_traffic import OperatorBytes
from experiments.bench.static.host_calls import even_selection, spread_blocks
from kernels.ops.nsa_attention import triton_ops as nsa_on_host


def test_blocks_are_spread_over_those_up_to_a_querys_own():
    blocks = spread_blocks(64, 4, 3)
    assert blocks[5].tolist() == [0, 4, -1]
    assert blocks[11].tolist() == [0, 4, 8]
    assert blocks[63].tolist() == [0, 28, 60]
    assert blocks.dtype == np.int32


def test_a_single_block_is_the_first():
    assert np.unique(spread_blocks(8, 2, 1)).tolist() == [0]


FILLED = """
import json, sys, torch
from pathlib import Path
empty, fill = torch.empty, int(sys.argv[2])
torch.empty = lambda *a, **k: empty(*a, **k).fill_(fill)
torch.empty_like = lambda x, **k: torch.empty(x.shape, **{"dtype": x.dtype, **k})
from experiments.bench.cases import nsa
from experiments.bench.static.operation_counts import account
from experiments.bench.static.gpus import GPUS
from experiments.bench.static.host_calls import on_triton
from experiments.bench.static.compared_operations import EmptyInputs
(call,) = nsa(EmptyInputs(1024), 16, 64)
rows, _ = account(call, lambda: on_triton(call), GPUS["H200"], Path(sys.argv[1]))
print(json.dumps(rows))
"""


@pytest.mark.long
def test_the_account_of_nsa_is_the_same_with_any_memory(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(RUN).parent)}
    environment.pop("TRITON_INTERPRET", None)
    found = []
    for fill in (0, 1):
        command = [sys.executable, "-c", FILLED, str(tmp_path), str(fill)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert [row["mode"] for row in found[0]] == ["forward", "backward"]
    assert found[0] == found[1]


def test_the_choice_is_no_operator_that_is_counted(monkeypatch):
    monkeypatch.setattr(nsa_on_host, "block_topk", lambda *_: torch.full((1, 8, 2, 3), 9, dtype=torch.int32))
    with OperatorBytes() as operators, even_selection():
        before = operators.operators
        chosen = nsa_on_host.block_topk(*[None] * 5, SimpleNamespace(select_size=2), 1.0, None)
        assert operators.operators - before == 1  # the choice that stands in for a kernel's
    assert chosen[0, 7].tolist() == [[0, 2, 6], [0, 2, 6]]
