"""The first run on a machine is the run that every later one is: with compiled kernels nowhere and in the cache."""

from pathlib import Path

import pytest
from support.program import Lab, assert_same_run

# Rows of several vectors and heads, which the compiler sums in an order of its own.
WIDE = ["model.d_model=96", "data.seq_len=64", "trainer.max_steps=6", "trainer.val_every=3"]


@pytest.mark.parametrize("model", ["orthgsa", "nsa"])
@pytest.mark.long
def test_a_run_that_compiles_its_kernels_is_the_run_that_finds_them(model, tmp_path, small_text, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "machine code"))
    folders: list[Path] = []
    for name in ("first", "second"):
        lab = Lab(tmp_path / name, small_text, tmp_path / "cache")
        outcome = lab.run(f"model={model}", *WIDE)
        assert outcome.status == 0, outcome.err
        folders.append(lab.run_folder())
    assert_same_run(*folders)
