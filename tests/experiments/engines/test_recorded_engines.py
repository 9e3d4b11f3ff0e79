"""What engines ask of Slurm and say of cells; records of cells and lists of commands."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.program import ROOT
from support.recorded import check, flat
from support.steady import changed, masked, refusal, tiny_config

from experiments.engines import command_list
from experiments.engines import engine as engine_page
from experiments.engines import slurm as slurm_page
from experiments.engines.engine import DONE
from experiments.planning.plan import plan
from experiments.system.processes import discard
from zoo.errors import UserError

RECORDED = Path(__file__).parent / "recorded"


def _plans(count: int = 2, **keys):
    config = tiny_config(data__name="text", data__path="book.txt", results="results", name="study", **keys)
    return [plan(changed(config, seed=seed)) for seed in range(count)]


def _named(plans, place: Path) -> dict[str, str]:
    return {str(place): "<place>", **{planned.run: f"<run {n}>" for n, planned in enumerate(plans)}}


def test_a_cell_that_trains_elsewhere_draws_no_bar_and_knows_who_trains_beside_it(place: Path, monkeypatch):
    trained = []
    monkeypatch.setattr(
        engine_page,
        "execute",
        lambda planned, sink, workers: trained.append(
            (planned.run, planned.config.trainer.progress, workers)
        ),
    )
    (planned,) = _plans(1, trainer__progress=True)
    assert engine_page.train_record(engine_page.write_record(planned), discard, 3) == (engine_page.DONE, "")
    assert trained == [(planned.run, False, 3)]


def test_a_cell_is_found_from_any_folder_and_goes_to_that_of_its_sweep(place: Path, monkeypatch):
    (planned,) = _plans(1)
    record = engine_page.write_record(planned)
    monkeypatch.chdir(record.parent)
    found = engine_page.enter_record(Path(record.name), None)
    assert Path.cwd().samefile(place)
    assert found.folder.path.is_absolute()
    assert found.folder.path.parent.samefile(planned.folder.path.parent)


@pytest.mark.parametrize("linked", [".nodes", ".cells", ".cells/<run>.json"])
def test_no_record_of_a_cell_is_written_through_a_link(place: Path, linked: str):
    (planned,) = _plans(1)
    link = planned.folder.path.parent / linked.replace("<run>", planned.run)
    link.parent.mkdir(parents=True)
    link.symlink_to(place / "elsewhere", target_is_directory=linked == ".cells")
    with pytest.raises(UserError, match="nothing is written through links"):
        engine_page.write_record(planned)
    assert not (place / "elsewhere").exists()


def test_every_experiment_of_a_sweep_has_a_list_of_its_own_cells(place: Path):
    (one,) = _plans(1)
    other = plan(changed(one.config, seed=1, name="other"))
    engine = command_list.CommandList([one, other])
    for planned in (one, other):
        engine.submit(planned)
    engine.changed()
    files = [planned.folder.path.parent / command_list.COMMANDS for planned in (one, other)]
    assert [command_list.listed(file) for file in files] == [[one.run], [other.run]]


class _Queue:
    """A pretended queue of jobs: states and ends as they are set."""

    def __init__(self) -> None:
        self.states, self.ends, self.cancelled, self.refreshed = {}, {}, [], 0

    def refresh(self) -> None:
        self.refreshed += 1

    def state(self, job: str, began: float | None) -> str | None:
        return self.states.get(job)

    def began(self, job: str) -> float | None:
        return None

    def end(self, job: str) -> str:
        return self.ends.get(job, "")

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)


class _Executor:
    def __init__(self) -> None:
        self.parameters, self.numbers, self.environment = [], itertools.count(7), []

    def update_parameters(self, **parameters) -> None:
        self.parameters.append(parameters)

    def submit(self, made):
        self.environment.append(
            {k: os.environ.get(k) for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} | {"workers": made.workers}
        )
        return SimpleNamespace(job_id=str(next(self.numbers)))


class _Refused(Exception):
    """What submitit raises."""


def _slurm(monkeypatch, plans):
    errors = SimpleNamespace(FailedJobError=_Refused, FailedSubmissionError=_Refused)
    for name in ("submitit", "submitit.core", "submitit.core.utils"):  # it may not be installed
        monkeypatch.setitem(sys.modules, name, errors)
    queue, executor = _Queue(), _Executor()
    monkeypatch.setattr(slurm_page, "SlurmQueue", lambda: queue)
    monkeypatch.setattr(slurm_page, "LocalQueue", lambda: queue)
    monkeypatch.setattr(slurm_page, "_executor", lambda slurm, folder: executor)
    monkeypatch.setattr(slurm_page.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(slurm_page.secrets, "token_hex", lambda n: "f" * 2 * n)
    return slurm_page.SlurmJobs(plans), queue, executor


def test_jobs_of_slurm(place: Path, monkeypatch):
    """A job's life: submitted, waiting, running, lost, ended, cancelled; what an earlier command left."""
    asked = {"partition": "p", "account": "a", "qos": "q", "minutes": 61.5, "cpus": 3, "gpus": 2}
    asked |= {"memory_gb": 1.5, "signal_s": 33, "setup": ["module load x"]}
    asked |= {"more": ["constraint=a100", "comment=a=b"]}
    slurm = {f"sweep__slurm__{key}": value for key, value in asked.items()}
    slurm |= {"sweep__engine": "slurm", "trainer__threads": 4}
    plans = _plans(2, **slurm)

    def lines() -> Iterator[str]:
        engine, queue, executor = _slurm(monkeypatch, plans)
        yield f"{engine.capacity} {engine.at_once} {queue.refreshed} {engine.leave}"
        for planned in plans:
            engine.submit(planned)
        yield from flat(executor.parameters[0])
        yield f"{executor.environment}"
        job = json.loads(slurm_page._job_path(plans[0]).read_text())
        yield f"{job}"
        for state in ("PENDING", "RUNNING", "COMPLETING"):
            queue.states["7"] = state
            yield f"{state}: {engine.state(plans[0])}"
        engine.submit(plans[0])
        yield (
            f"submitted {len(executor.environment)}, changed {len(engine.changed())}, looked "
            f"{queue.refreshed}"
        )
        for how in ("", "NODE_FAIL", "CANCELLED"):
            engine.gone.clear()
            queue.states.clear()
            queue.ends["7"] = how
            yield f"gone: {engine.state(plans[0])}"
            yield f"{how}: {engine.state(plans[0])}"
        queue.states["7"] = "RUNNING"
        for outcome in (
            {"job": "7", "status": 1, "why": "it failed"},
            {"job": "8", "status": 1, "why": "another's"},
        ):
            slurm_page.outcome_path(engine_page.record_path(plans[0])).write_text(json.dumps(outcome))
            yield f"{outcome}: {engine.state(plans[0])}"
        yield f"cancel {engine.cancel(plans[0])} {queue.cancelled} {engine.state(plans[0])}"
        queue.states.clear()
        yield f"cancel again {engine.cancel(plans[0])}"
        local = _plans(1, **{**slurm, "sweep__slurm__cluster": "local"})
        engine, queue, executor = _slurm(monkeypatch, local)
        yield (
            f"local {engine.capacity} {engine.at_once}, an earlier job of the cluster "
            f"{engine._job_state(local[0])}"
        )
        engine.submit(local[0])
        yield from flat(executor.parameters[0])
        monkeypatch.setattr(
            executor, "submit", lambda _cell: (_ for _ in ()).throw(_Refused("no such partition"))
        )
        yield refusal(engine._submitted, None)
        leaving = _plans(1, **slurm, sweep__action="submit")
        engine, queue, executor = _slurm(monkeypatch, leaving)
        engine.submit(leaving[0])
        yield f"{engine.state(leaving[0])} {engine.detached_message(3)}"

    check(RECORDED / "slurm_jobs.txt", masked(list(lines()), _named(plans, place)))


@pytest.mark.parametrize("action", ["wait", "submit"])
def test_a_cell_that_is_done_is_told_as_done_also_by_a_command_that_only_submits(place, monkeypatch, action):
    (planned,) = _plans(1, sweep__engine="slurm", sweep__action=action)
    engine, _, _ = _slurm(monkeypatch, [planned])
    engine.submit(planned)
    monkeypatch.setattr(type(planned), "done", True)
    state = engine.state(planned)
    assert (state.ended, state.status, state.left) == (True, DONE, False)


@pytest.mark.parametrize("action", ["wait", "submit"])
def test_a_cell_whose_job_has_ended_gets_another_though_the_queue_still_lists_the_first(
    place: Path, monkeypatch, action: str
):
    """Queues forget late. A job under way is left alone, also where an earlier one of the cell left its outcome."""
    (planned,) = _plans(1, sweep__engine="slurm", sweep__action=action)
    engine, queue, executor = _slurm(monkeypatch, [planned])
    outcome = slurm_page.outcome_path(engine_page.record_path(planned))

    def jobs_after_a_submission() -> int:
        engine.submit(planned)
        return len(executor.parameters)

    assert jobs_after_a_submission() == 1
    queue.states["7"] = "RUNNING"
    assert jobs_after_a_submission() == 1
    for count, job, status in ((2, "7", 1), (3, "8", None)):  # failed, cancelled
        queue.states[job] = "COMPLETING"
        outcome.write_text(json.dumps({"job": job, "status": status, "why": "it ended"}))
        assert jobs_after_a_submission() == count
        assert not outcome.exists(), "it would pass for the new job's"
    queue.states["9"] = "PENDING"
    outcome.write_text(json.dumps({"job": "8", "status": 1, "why": "it ended"}))
    assert jobs_after_a_submission() == 3


def test_what_is_submitted_finds_this_code_and_nothing_else_does(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "own")
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    names = ("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    with slurm_page._environment(3):
        assert [os.environ[name] for name in names] == [f"{ROOT}{os.pathsep}own", "3", "3"]
    assert [os.environ.get(name) for name in names] == ["own", "9", None]


def test_a_job_of_this_machine_that_does_not_end_is_killed(monkeypatch):
    """After half a minute, which does not pass here."""
    words = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(); time.sleep(300)"
    process = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        clock = itertools.count(step=20)
        monkeypatch.setattr(slurm_page.time, "monotonic", lambda: next(clock))
        slurm_page.LocalQueue().cancel(str(process.pid))
        assert process.wait(300) == -signal.SIGKILL
    finally:
        process.kill()
        process.stdout.close()


def test_jobs_are_those_that_squeue_lists_until_it_answers_otherwise(monkeypatch):
    """And the end of one that is gone is what scontrol tells."""
    answers = {"squeue": "7|RUNNING\n8|PENDING\nwarning\n", "scontrol": "JobId=7 JobState=NODE_FAIL Reason=x"}
    monkeypatch.setattr(slurm_page, "_output_of", lambda command, *_: answers.get(command))
    queue = slurm_page.SlurmQueue()
    queue.refresh()
    answers.pop("squeue")
    queue.refresh()
    assert [queue.state(job, None) for job in "789"] == ["RUNNING", "PENDING", None]
    assert queue.end("7") == "NODE_FAIL"
    with pytest.raises(UserError, match="squeue does not answer"):
        slurm_page.SlurmQueue().refresh()
