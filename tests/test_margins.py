"""The table of margins: what it lists, how it measures, and that a suite spread over processes has one."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import margins
from support.margins import above, below

SUITE = """
import math
import numpy as np
import pandas as pd
import pytest
import torch
from support.margins import above, below

def test_narrow():
    torch.testing.assert_close(torch.tensor([1.0, 2.0]).double(), torch.tensor([1.0, 2.5]).double(), rtol=0, atol=1)

@pytest.mark.parametrize("error", [0.1, 0.2])
def test_of_its_own(error):
    below(error, 1.0, "y")
    above(5.0, 0.2)

def test_others():
    assert torch.allclose(torch.tensor(1.0), torch.tensor(1.1), rtol=0, atol=1)
    np.testing.assert_allclose([1.0], [1.03], rtol=0, atol=1)
    assert 1.02 == pytest.approx(1, abs=1)
    assert [1.0, 1.03] == pytest.approx([1.0, 1.0], abs=1)
    assert math.isclose(1, 1.25, rel_tol=1)
    np.testing.assert_allclose(pd.Series([1.0, 2.0]), [1.0, 2.01], rtol=0, atol=1)

def test_what_must_differ():
    assert not torch.allclose(torch.tensor(1.0), torch.tensor(3.0), rtol=0, atol=1)
    assert 11 != pytest.approx(1, abs=1)
"""
RATIOS = {
    10: 0.5, 14: 0.2, 15: 0.04, 18: 0.1, 19: 0.03, 20: 0.02, 21: 0.03, 22: 0.2, 23: 0.01, 26: 0.5, 27: 0.1,
}  # fmt: skip


def run(folder: Path, *words: str) -> str:
    (folder / "test_suite.py").write_text(SUITE)
    tests = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-p", "support.margins", "-c", os.devnull, "--rootdir", "."]
    command += words
    paths = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}  # of the suite around
    made = subprocess.run(
        command, cwd=folder, env={**own, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@pytest.mark.parametrize(
    "spread",
    [pytest.param(spread, marks=pytest.mark.long) for spread in ((), ("-n", "2"))],
    ids=["one process", "two workers"],
)
def test_every_comparison_is_listed_with_its_room(tmp_path, spread):
    shown = run(tmp_path, "--margins", *spread)
    table = [line.split() for line in shown.splitlines() if "test_suite.py:" in line]
    assert [float(words[0]) for words in table] == sorted(RATIOS.values(), reverse=True)
    assert {int(words[1].split(":")[1]): float(words[0]) for words in table} == RATIOS
    assert "test_of_its_own[0.2] y" in shown
    assert "11 limits, 2 with less than 4 times of room" in shown


def test_limits_fail_with_the_numbers(monkeypatch):
    monkeypatch.setattr(margins, "_recording", False)  # these are no limits of the suite
    below(0, 0)
    for error in (1.0, 2.0, math.nan, math.inf):
        with pytest.raises(AssertionError, match=r"q: .*, limit 1"):
            below(error, 1.0, "q")
    for value in (1.0, 0.5, math.nan):
        with pytest.raises(AssertionError, match=r"g: .*, not above 1"):
            above(value, 1.0, "g")
