"""How the job of a cell ends, with a pretended submitit; Slurm is not needed."""

import json
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.configuration.schema import SlurmConfig
from experiments.engines import engine, slurm_cell
from experiments.engines import slurm as slurm_jobs
from experiments.engines.engine import DONE, FAILED, PAUSED
from experiments.system import signals
from zoo.errors import UserError

TERM, USR2 = signal.SIGTERM, signal.SIGUSR2


class _TimeUp(Exception):
    """What submitit raises where a job reached its time limit too often."""


class _Requeued(Exception):
    """Submitit requeues the job, and its process ends."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch):
    """Run a cell's job whose training ends with a status after a signal; returns what it left."""
    waited: list[float] = []
    record = tmp_path / "abc.json"

    def run(status: int, told: signal.Signals | None, cluster: str = "slurm", times_up: bool = False):
        def requeue(number: int, frame: object) -> None:
            assert number == USR2
            raise _TimeUp("timed out too often.") if times_up else _Requeued

        job = SimpleNamespace(job_id="7", cluster=cluster)
        monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(JobEnvironment=lambda: job))
        for name in ("submitit.core", "submitit.core.utils"):
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(UncompletedJobError=_TimeUp))
        monkeypatch.setattr(slurm_cell.signal, "getsignal", lambda number: requeue)
        monkeypatch.setattr(slurm_cell.time, "sleep", waited.append)
        monkeypatch.setattr(signals, "pause_on", lambda *numbers: None)
        monkeypatch.setattr(signals, "_received", [told] if told else [])
        monkeypatch.setattr(engine, "train_record", lambda record, sink, workers: (status, f"why {workers}"))
        slurm_cell.SlurmCell(record, 3)()
        return json.loads(slurm_cell.outcome_path(record).read_text())

    run.waited, run.record = waited, record
    return run


@pytest.mark.parametrize(
    ("status", "told"),
    [(DONE, None), (FAILED, None), (PAUSED, None), (FAILED, USR2), (DONE, USR2), (DONE, TERM)],
)
def test_a_job_leaves_its_outcome_also_where_it_was_told_too_late(run, status: int, told):
    assert run(status, told) == {"job": "7", "status": status, "why": "why 3"}
    assert run.waited == []


@pytest.mark.parametrize(("cluster", "waited"), [("slurm", [slurm_cell.GRACE_S]), ("local", [])])
def test_a_job_that_is_preempted_leaves_no_outcome_and_waits_for_slurm_to_end_it(run, cluster: str, waited):
    """Slurm requeues none that ends by itself; a job of this machine has nobody to wait for."""
    with pytest.raises(SystemExit) as ended:
        run(PAUSED, TERM, cluster)
    assert ended.value.code == 143
    assert run.waited == waited
    assert not slurm_cell.outcome_path(run.record).exists()


def test_a_job_whose_time_is_up_is_requeued_until_it_was_too_often(run):
    with pytest.raises(_Requeued):
        run(PAUSED, USR2)
    assert not slurm_cell.outcome_path(run.record).exists()
    assert run(PAUSED, USR2, times_up=True) == {
        "job": "7",
        "status": PAUSED,
        "why": "timed out too often. The same command resumes it (sweep.slurm.requeues, sweep.slurm.minutes)",
    }


@pytest.mark.parametrize(("cluster", "made"), [("local", "of this machine"), ("slurm", "by srun")])
def test_jobs_are_started_by_srun_or_as_processes_of_this_machine(monkeypatch, tmp_path: Path, cluster, made):
    """And requeued as often as asked for."""
    submitit = SimpleNamespace(
        LocalExecutor=lambda folder, max_num_timeout: ("of this machine", folder, max_num_timeout),
        SlurmExecutor=lambda folder, max_num_timeout: ("by srun", folder, max_num_timeout),
    )
    monkeypatch.setitem(sys.modules, "submitit", submitit)
    slurm = SlurmConfig(cluster=cluster, requeues=7)
    assert slurm_jobs._executor(slurm, tmp_path) == (made, tmp_path, 7)


def test_a_machine_without_submitit_or_srun_is_told_what_to_do(monkeypatch, tmp_path: Path):
    def nowhere(folder, max_num_timeout):
        raise RuntimeError("Could not detect 'srun', are you indeed on a slurm cluster?")

    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(SlurmExecutor=nowhere))
    with pytest.raises(UserError, match="there is no srun here"):
        slurm_jobs._executor(SlurmConfig(), tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=re.escape("needs submitit: pip install -e '.[slurm]'")):
        slurm_jobs._executor(SlurmConfig(), tmp_path)
