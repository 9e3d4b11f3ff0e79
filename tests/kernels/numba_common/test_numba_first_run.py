"""What a process computes does not depend on whether it compiled the kernels or found them in the cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]

SCRIPT = """
import dataclasses, hashlib, json, sys, torch
from support import operation_cases

found = {}
for family in sys.argv[1:]:
    for call in filter(operation_cases.has_numba_form, getattr(operation_cases, family)()):
        single = dataclasses.replace(operation_cases.as_dtype(call, torch.float32), learned=call.learned)
        for name, x in operation_cases.run(single, "numba").items():
            found[f"{call.title}, {name}"] = hashlib.sha256(x.contiguous().numpy()).hexdigest()
print(json.dumps(found))
"""


def digests(cache: Path, *families: str) -> dict[str, str]:
    """What a new process computes of these families' calls, results and gradients, by their names."""
    path = os.pathsep.join((str(TESTS), str(TESTS.parent)))
    environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", SCRIPT, *families]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "families",
    [
        ["indexed_attention"],
        pytest.param(["nsa_attention", "indexed_attention"], marks=pytest.mark.long),
        pytest.param(["indexed_attention", "nsa_attention"], marks=pytest.mark.long),
    ],
    ids=lambda families: " before ".join(families),
)
@pytest.mark.slow
def test_compiled_partly_compiled_and_loaded_kernels_compute_the_same_bits(families, tmp_path):
    """The second process finds the first family's kernels in the cache, and what both families' kernels call."""
    empty = digests(tmp_path, families[0])
    partly = digests(tmp_path, *families)
    full = digests(tmp_path, *reversed(families)) if families[1:] else partly
    assert empty.keys() <= full.keys() == partly.keys()
    assert [name for name in empty if empty[name] != full[name]] == []
    assert [name for name in full if partly[name] != full[name]] == []
