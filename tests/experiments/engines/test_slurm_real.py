"""sweep.engine=slurm on a real Slurm of this machine: twelve cells, some disturbed."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import Lab
from support.slurm_cluster import SlurmCluster, why_not
from support.sweeps import CELL, TWELVE, assert_as_undisturbed, first_rows, processes, under_way, wait_until

pytest.importorskip("submitit", reason="sweep.engine=slurm needs submitit (the extra slurm)")
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path / "slurm", cpus=2)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    try:
        cluster.wait_until_up()
        yield cluster
    finally:
        cluster.stop()


def kill_process_of(job: str) -> None:
    """What a machine does that runs out of memory; scancel's KILL would be a cancelled job."""
    (process,) = [
        each
        for each in processes("python", "-u", "submitit.core._submit")
        if each.name() != "srun" and each.environ().get("SLURM_JOB_ID") == job
    ]
    process.kill()


@pytest.mark.timeout(1800)
def test_twelve_cells_with_jobs_killed_and_requeued_and_the_sweep_killed(
    tmp_path: Path, small_text: Path, shared_cache: Path, slurm: SlurmCluster
):
    torn, whole = (Lab(tmp_path / name, small_text, shared_cache) for name in ("torn", "whole"))
    on_slurm = ["sweep.engine=slurm", "sweep.slurm.partition=main", "sweep.slurm.poll_s=1"]
    refused = torn.run(*TWELVE, *on_slurm, "sweep.slurm.partition=nowhere")
    assert refused.status == 2, refused
    assert "Slurm refused the job: " in refused.err
    assert "invalid partition" in refused.err
    first = torn.start(*TWELVE, *on_slurm)
    wait_until(lambda: len(under_way(torn)) == 2, first)
    first.popen.kill()
    killed, limited = under_way(torn)
    begun = first_rows([killed, limited])
    jobs = {
        path.name.partition(".")[0]: json.loads(path.read_text())["job"]
        for path in torn.results.glob("*/.cells/*.job.json")
    }
    slurm.run("scancel", "--signal=USR2", jobs[limited.name])  # what comes before the time limit
    kill_process_of(jobs[killed.name])
    last = torn.run(*TWELVE, *on_slurm, timeout=1500)
    assert last.status == 0, last
    log = next(torn.results.glob(f"*/.cells/jobs/*/{jobs[limited.name]}_0_log.out")).read_text()
    assert "Requeued job" in log, log
    assert whole.run(*TWELVE).status == 0
    assert_as_undisturbed(torn, whole, begun)
    assert not processes("submitit", str(torn.results))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_preempted_job_saves_and_is_requeued(devices, tmp_path, small_text, shared_cache, slurm):
    torn, whole = (Lab(tmp_path / name, small_text, shared_cache) for name in ("torn", "whole"))
    words = ["--multirun", "seed=0", *CELL, "trainer.checkpoint_every=10000", "trainer.accumulate=2"]
    words += [f"trainer.devices={devices}"]
    on_slurm = ["sweep.engine=slurm", "sweep.slurm.cpus=2", "sweep.slurm.poll_s=1", "sweep.retries=0"]
    sweep = torn.start(*words, *on_slurm)
    wait_until(lambda: bool(under_way(torn)), sweep)
    begun = first_rows(under_way(torn))
    (job,) = [json.loads(path.read_text())["job"] for path in torn.results.glob("*/.cells/*.job.json")]
    slurm.run("sbatch", "--partition=urgent", "--cpus-per-task=2", "--output=/dev/null", "--wrap=sleep 1")
    wait_until(lambda: "Restarts=1" in slurm.run("scontrol", "show", "job", job), sweep)
    while sweep.running and "JobState=RUNNING" not in slurm.run("scontrol", "show", "job", job):
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # not two minutes later
        time.sleep(1)
    outcome = sweep.wait(300)
    assert outcome.status == 0, outcome
    assert whole.run(*words).status == 0
    assert_as_undisturbed(torn, whole, begun)
