"""What a page loads before anybody asks for it: signals are handled, and help is printed, before torch is there."""

import subprocess
import sys

import pytest
from support.program import ROOT

LIGHT = (
    *("experiments.engines.preloaded_worker", "experiments.engines.slurm_cell"),
    *("experiments.engines.supervisor", "experiments.configuration.hydra_settings"),
    *("experiments.front_desk", "experiments.jobs", "experiments.system.paths"),
    *("experiments.system.processes", "experiments.system.signals"),
)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        *((module, {"torch", "numpy"}) for module in LIGHT),
        ("experiments.cli", {"lightning", "numba", "datasets", "transformers"}),
        (
            "experiments.training.train",
            {"torchmetrics", "matplotlib", "scipy", "pandas", "datasets", "transformers"},
        ),
        ("experiments.bench.peers", {"lightning", "numba", "transformers", "fla"}),
    ],
)
def test_a_page_loads_no_library_that_it_may_not_need(module: str, absent: set[str]):
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert absent & set(loaded.stdout.split()) == set()
