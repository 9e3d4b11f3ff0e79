"""sweep.engine=slurm by submitit's local executor: jobs that are killed, told to make room, and left by their sweep."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.program import Lab
from support.sweeps import (
    CELL,
    TWELVE,
    assert_as_undisturbed,
    first_rows,
    processes,
    steps_of,
    under_way,
    wait_until,
)

from experiments.engines.engine import record_path
from experiments.engines.slurm import SlurmJobs
from experiments.engines.slurm_cell import outcome_path
from experiments.planning.plan import plan

pytest.importorskip("submitit", reason="sweep.engine=slurm needs submitit (the extra slurm)")
LOCAL = ["sweep.engine=slurm", "sweep.slurm.cluster=local", "sweep.slurm.poll_s=0.2"]


def jobs(lab: Lab) -> dict[str, str]:
    """Run -> the job that trains it."""
    return {
        path.name.partition(".")[0]: json.loads(path.read_text())["job"]
        for path in lab.results.glob("*/.cells/*.job.json")
    }


def send(lab: Lab, run: Path, number: signal.Signals) -> None:
    """Send a signal to the process that trains a run, as Slurm would."""
    (controller,) = [
        p for p in processes("submitit.local._local", str(lab.results)) if str(p.pid) == jobs(lab)[run.name]
    ]
    controller.children()[0].send_signal(number)


@pytest.mark.long
def test_twelve_jobs_some_killed_at_their_limit_or_left_end_as_if_nobody_had_disturbed_them(
    tmp_path: Path, small_text: Path, shared_cache: Path
):
    torn, whole = (Lab(tmp_path / name, small_text, shared_cache) for name in ("torn", "whole"))
    command = [*TWELVE, "sweep.workers=3"]
    first = torn.start(*command, *LOCAL)
    wait_until(lambda: len(under_way(torn)) == 3, first)
    killed, limited, left = under_way(torn)
    begun = first_rows([killed, limited])
    first.popen.kill()
    send(torn, killed, signal.SIGKILL)
    send(torn, limited, signal.SIGUSR2)  # what Slurm sends before the time limit
    before = jobs(torn)
    again = torn.run(*command, *LOCAL, timeout=900)
    assert again.status == 0, again
    after = jobs(torn)
    assert after[killed.name] != before[killed.name], "a job that was killed is submitted again"
    for run in (limited, left):
        assert after[run.name] == before[run.name], "a job that goes on is picked up"
    log = next(torn.results.glob(f"*/.cells/jobs/*/{before[limited.name]}_0_log.out")).read_text()
    assert "Requeued job" in log, log
    assert whole.run(*command).status == 0
    assert_as_undisturbed(torn, whole, begun)
    assert not processes("submitit", str(torn.results))


@pytest.mark.long
def test_a_cell_whose_job_is_cancelled_goes_on_later_and_one_that_diverges_is_told(lab: Lab):
    command = ["--multirun", *CELL, "seed=0", "optim.lr=3e-3,1e30", *LOCAL]
    first = lab.start(*command)
    wait_until(lambda: bool(under_way(lab)), first)
    (run,) = under_way(lab)
    first.popen.kill()
    cancelled = lab.run(*command, "sweep.action=cancel")
    assert cancelled.status == 0, cancelled
    assert "1 cells cancelled" in cancelled.out
    assert not processes("submitit", str(lab.results))
    reached = len(steps_of(run))
    assert 25 < reached < 1200
    last = lab.run(*command)
    assert last.status == 1, last
    assert last.out.count(": done: test loss") == 1, last.out
    assert "is not finite at step 1" in last.out
    assert "Traceback" not in last.out + last.err
    assert steps_of(run) == list(range(1, 1201))


def test_a_job_that_has_ended_but_is_still_in_the_queue_keeps_no_cell_from_being_submitted(lab, monkeypatch):
    planned = plan(lab.compose("seed=0", *LOCAL)[0])
    planned.folder.path.parent.mkdir(parents=True)
    submitted = []
    here = str(os.getpid())  # what stands for the job in the queue
    monkeypatch.setattr(SlurmJobs, "_submitted", lambda self, cell: submitted.append(cell) or here)
    jobs = SlurmJobs([planned])
    jobs.submit(planned)
    jobs.submit(planned)
    assert len(submitted) == 1, "a job that goes on is picked up"
    outcome = {"job": here, "status": None, "why": "cancelled"}
    outcome_path(record_path(planned)).write_text(json.dumps(outcome), encoding="utf-8")
    jobs.submit(planned)
    assert len(submitted) == 2


@pytest.mark.parametrize(("how", "lost"), [("CANCELLED", False), ("NODE_FAIL", True), ("", True)])
def test_a_job_that_is_gone_is_lost_at_the_second_look_unless_somebody_cancelled_it(how: str, lost: bool):
    engine = SlurmJobs.__new__(SlurmJobs)
    engine.gone, engine.queue = set(), SimpleNamespace(end=lambda job: how)
    cell, job = SimpleNamespace(run="1a2b"), {"job": "17", "output": "17.out"}
    assert not engine._lost(cell, job).ended
    state = engine._lost(cell, job)
    assert (state.ended, state.lost) == (True, lost)
    assert state.why == f"job 17 ended without an outcome{f' ({how})' if how else ''}; its output: 17.out"
