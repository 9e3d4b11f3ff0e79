"""sweep.engine=list as a job array of a real Slurm: the page's own line, and a cell that is told to make room."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.program import ROOT, Lab
from support.slurm_cluster import SlurmCluster, why_not
from support.sweeps import CELL, STEPS, steps_of, under_way

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not())]
FILE, TASKS = "results/my_sweep/cells.txt", "--array=1-12"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch, lab: Lab) -> Iterator[SlurmCluster]:
    with contextlib.ExitStack() as afterwards:
        cluster = SlurmCluster(tmp_path / "slurm", cpus=2)
        afterwards.callback(cluster.stop)
        for name, value in {**lab.environment(), **cluster.environment}.items():
            monkeypatch.setenv(name, value)
        cluster.wait_until_up()
        yield cluster


def wait_for(true: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def line_of_the_page(lab: Lab) -> str:
    """The page's sbatch line, for the second cell of the lab's own list, and waiting for the job's end."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8").splitlines()
    (line,) = [row for row in page if row.startswith("sbatch ")]
    assert FILE in line
    assert TASKS in line
    line = line.replace(FILE, str(lab.results / "default" / "cells.txt")).replace(TASKS, "--array=2")
    return line.replace("sbatch ", f"sbatch --output={lab.folder}/%A_%a.out ")


def test_the_signal_reaches_the_cell_which_pauses_and_goes_on_when_submitted_again(lab, slurm):
    assert lab.here("--multirun", *CELL, "seed=0,1", "sweep.engine=list").status == 0
    line = line_of_the_page(lab)
    job = slurm.run("sh", "-c", line.replace("sbatch ", "sbatch --parsable ")).strip()
    wait_for(lambda: bool(under_way(lab)))
    slurm.run("scancel", "--signal=USR2", f"{job}_2")  # to the job's steps, as what comes before its limit
    wait_for(lambda: not slurm.run("squeue", "--noheader").strip())
    said = (lab.folder / f"{job}_2.out").read_text()
    assert "stopped by SIGUSR2 at step" in said, said
    (run,) = lab.run_folders()
    assert len(steps_of(run)) < STEPS
    again = slurm.run("sh", "-c", line.replace("sbatch ", "sbatch --wait "))
    assert "Submitted batch job" in again, again
    assert (run / "summary.json").is_file(), [path.read_text() for path in lab.folder.glob("*.out")]
    assert steps_of(run) == list(range(1, STEPS + 1))
