"""sweep.engine=slurm by submitit's local executor: jobs that are killed, told to make room, and left by their sweep."""

import json
import signal
from pathlib import Path

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
