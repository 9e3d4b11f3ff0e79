"""Compiling for a GPU on a machine without one: what is refused, and that Triton's cache is filled and found again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import RUN, Lab

ROOT = Path(RUN).parent

ONE_CASE = """
import sys
from experiments.bench.compiled import compiling_for
from experiments.configuration.schema import Config, GpuConfig
from experiments.gpu import compile_stage
from experiments.gpu.settings import Settings

settings = Settings.of(Config(device="cpu", gpu=GpuConfig(stage="compile", target="H200")))
with compiling_for("H200"):
    print(compile_stage._run_case(settings, "hyper_pre"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpu.target=H200"], "works only with gpu.stage=compile"),
        (["gpu.target=H200", "gpu.stage=compile", "gpu.rehearse=true"], "without gpu.rehearse"),
        (["gpu.target=H2O0", "gpu.stage=compile"], "did you mean 'H200'?"),
        (["gpu.target=H200", "gpu.stage=compile"], "unset TRITON_INTERPRET"),
    ],
)
def test_what_is_refused(lab: Lab, words: list[str], said: str):
    assert said in lab.refused("job=gpu", *words)


@pytest.mark.long
def test_the_cache_is_filled_once(tmp_path: Path):
    """Both ways of a case, in more configurations than one; nothing fails and nothing is compiled twice."""
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def compiled() -> dict[Path, float]:
        done = subprocess.run(
            [sys.executable, "-c", ONE_CASE],
            capture_output=True,
            text=True,
            env=environment,
            cwd=ROOT,
            timeout=300,
        )
        assert done.stdout.strip() == "{}", done.stderr[-2000:]
        return {path: path.stat().st_mtime for path in tmp_path.rglob("*.cubin")}

    first = compiled()
    assert {path.stem for path in first} == {"_pre_forward", "_pre_backward"}
    assert len(first) > 2
    assert compiled() == first
