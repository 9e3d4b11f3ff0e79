"""The program on several devices: the same rows, weights and folder as on one; kills, failures and refusals."""

import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
from support.program import Lab, Process, assert_same_run, differences, steady_rows

from experiments.planning.plan import check_config, plan
from experiments.runs import FAILURE, RunFolder, read_metrics
from zoo.files import read_rest, read_whole

STEP = ["trainer.accumulate=2"]
TWO = [*STEP, "trainer.devices=2"]
SHARDED = [*TWO, "trainer.strategy=fsdp"]

ABORT_AT_EXIT = """import atexit, os, sys
if "experiments.training.rank" in sys.orig_argv and "-u" in sys.orig_argv:
    atexit.register(os.abort)
"""
"""Of the processes of a run, those that train (torchrun's command holds the same words, without -u)."""


def labs(tmp_path: Path, small_text: Path, shared_cache: Path, *names: str) -> list[Lab]:
    return [Lab(tmp_path / name, small_text, shared_cache) for name in names]


@pytest.mark.long
def test_two_processes_write_what_one_writes(tmp_path: Path, small_text: Path, shared_cache: Path):
    one, two = labs(tmp_path, small_text, shared_cache, "one", "two")
    for lab, words in ((one, STEP), (two, TWO)):
        outcome = lab.done(*words)
        assert "test: loss" in outcome.out
    assert_same_run(one.run_folder(), two.run_folder())
    summary = RunFolder(two.run_folder()).summary()
    assert (summary["processes"], summary["strategy"]) == (2, "ddp")
    assert two.run_folder().name == one.run_folder().name
    assert "already complete" in two.here(*SHARDED).out


@pytest.mark.long
def test_what_libraries_do_while_a_process_ends_does_not_undo_the_run(lab, tmp_path, monkeypatch):
    at_start = tmp_path / "site"
    at_start.mkdir()
    (at_start / "sitecustomize.py").write_text(ABORT_AT_EXIT, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(at_start))
    outcome = lab.run(*TWO)
    assert outcome.status == 0, outcome.err
    assert not (lab.run_folder() / FAILURE).exists()


@pytest.mark.slow
def test_how_many_devices_train_is_no_part_of_what_a_run_is(lab: Lab):
    plain, *others = (
        plan(lab.compose(*words)[0])
        for words in (STEP, TWO, SHARDED, [*SHARDED, "trainer.reshard=false"], [*STEP, "trainer.nodes=2"])
    )
    assert {other.run for other in others} == {plain.run}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trainer.devices=2"], "give a multiple, trainer.accumulate=2"),
        ([*STEP, "trainer.nodes=2", "sweep.engine=slurm"], "gives a cell one node"),
        ([*TWO, "device=cuda", "sweep.engine=ray", "sweep.ray.gpus=1"], "give sweep.ray.gpus=2"),
        ([*TWO, "device=cuda"], "PyTorch sees no CUDA device here"),
    ],
)
def test_what_cannot_work_is_refused(lab: Lab, words: list[str], said: str):
    assert said in lab.refused(*words)


@pytest.mark.parametrize("engine", ["list", "slurm"])
def test_gpus_of_other_machines_are_not_looked_for_here(lab: Lab, engine: str):
    words = [*TWO, "device=cuda", f"sweep.engine={engine}", "sweep.slurm.gpus=2"]
    check_config(lab.compose(*words)[0])


@pytest.mark.slow
def test_nodes_have_to_be_told_where_they_meet(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ARCHZOO_RENDEZVOUS", raising=False)
    assert "ARCHZOO_RENDEZVOUS=HOST:PORT" in lab.refused(*STEP, "trainer.nodes=2")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", [TWO, SHARDED], ids=["ddp", "fsdp"])
def test_killed_and_started_again_a_run_is_the_same(words, tmp_path, small_text, shared_cache):
    whole, torn = labs(tmp_path, small_text, shared_cache, "whole", "torn")
    words = [*words, "trainer.max_steps=60", "trainer.log_every=1", "trainer.checkpoint_every=4"]
    assert whole.run(*words).status == 0
    process = torn.start(*words)
    wait_for_step(process, torn, 14)
    kill_one(process)
    outcome = process.wait()
    assert outcome.status == 1
    notice, error = outcome.err.splitlines()
    assert notice.startswith("notice: data.path=")
    assert "Signal 9 (SIGKILL) received" in error
    assert RunFolder(torn.run_folder()).failure()["kind"] == "ProcessesEnded"
    process = torn.start(*words)
    wait_for_step(process, torn, 34)
    others = cells(process)
    process.popen.send_signal(signal.SIGKILL)
    process.wait()
    psutil.wait_procs(others, timeout=300)
    assert not any(x.is_running() for x in others), "processes outlived the one that started them"
    assert torn.run(*words).status == 0
    assert_same(whole.run_folder(), torn.run_folder())
    assert not list(torn.run_folder().rglob("*.partial"))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_part_of_a_run_takes_as_many_devices_as_there_are(tmp_path, small_text, shared_cache):
    """One process, then two with shards, then two with replicas, then one, against one alone."""
    one, many = labs(tmp_path, small_text, shared_cache, "one", "many")
    assert one.here(*STEP).status == 0
    for step, words in ((5, STEP), (10, SHARDED), (15, TWO)):
        outcome = many.here(*words, f"trainer.pause_at={step}")
        assert outcome.status == 1
        assert f"paused at step {step} of 20" in outcome.err
    assert many.here(*STEP).status == 0
    for a, b in zip(steady_rows(one.run_folder()), steady_rows(many.run_folder()), strict=True):
        assert (a["step"], a["split"]) == (b["step"], b["split"])
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-6)


@pytest.mark.long
def test_a_failure_is_told_in_a_line_and_recorded_as_of_one_process(tmp_path, small_text, shared_cache):
    one, two = labs(tmp_path, small_text, shared_cache, "one", "two")
    hot = ["optim.lr=1e30", "optim.warmup_steps=0"]
    found = []
    for lab, words in ((one, STEP), (two, TWO)):
        outcome = lab.here(*words, *hot)
        assert outcome.status == 1
        assert len(outcome.err.splitlines()) == 1
        found.append(RunFolder(lab.run_folder()).failure())
    assert found[0]["kind"] == found[1]["kind"] == "NonFinite"
    assert found[0]["step"] == found[1]["step"]


@pytest.mark.long
def test_a_sweep_starts_a_cell_s_processes(lab: Lab):
    outcome = lab.run("--multirun", *TWO, "seed=0,1", "sweep.workers=1")
    assert outcome.status == 0, outcome.err
    assert [RunFolder(path).summary()["processes"] for path in lab.run_folders()] == [2, 2]


@pytest.mark.long
def test_two_nodes_meet_where_they_are_told(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("ARCHZOO_RENDEZVOUS", f"127.0.0.1:{port}")
    nodes = [lab.start(*STEP, "trainer.nodes=2") for _ in range(2)]
    outcomes = [node.wait() for node in nodes]
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes
    assert RunFolder(lab.run_folder()).summary()["processes"] == 2


def assert_same(a: Path, b: Path) -> None:
    """Two runs with sharded checkpoints, or others."""
    newest = [max((folder / "checkpoints").glob("*.ckpt")) for folder in (a, b)]
    if newest[0].is_file():
        assert_same_run(a, b)
        return
    assert steady_rows(a) == steady_rows(b)
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    for key in ("state_dict", "optimizer_states"):
        assert differences(*(read_whole(folder, key) for folder in newest)) == []
    for key in ("loops", "lr_schedulers", "global_step"):
        assert differences(*(read_rest(folder)[key] for folder in newest)) == []


def wait_for_step(process: Process, lab: Lab, at: int) -> None:
    """Wait until the attempt has written a row of this step (an earlier one wrote none so late)."""
    while process.running:
        rows = [row for path in lab.results.glob("*/*/metrics.csv") for row in read_metrics(path)]
        if max((int(row["step"]) for row in rows), default=0) >= at:
            return
        time.sleep(0.01)
    raise AssertionError(process.wait())


def cells(process: Process) -> list[psutil.Process]:
    """torchrun and the processes of a run."""
    return psutil.Process(process.pid).children(recursive=True)


def kill_one(process: Process) -> None:
    """Kill the second process of a run."""
    trainers = [
        x for x in cells(process) if "experiments.training.rank" in x.cmdline() and "-u" in x.cmdline()
    ]
    trainers[1].kill()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("words", [TWO, SHARDED], ids=["ddp", "fsdp"])
def test_a_cell_that_is_told_to_make_room_tells_its_processes(words, tmp_path, small_text, shared_cache):
    whole, told = labs(tmp_path, small_text, shared_cache, "whole", "told")
    words = [*words, "trainer.max_steps=60", "trainer.log_every=1", "trainer.checkpoint_every=1000"]
    assert whole.here(*words).status == 0
    assert told.here("--multirun", *words, "sweep.engine=list").status == 0
    (record,) = told.results.glob("*/.cells/*.json")
    process = told.start("job=cell", f"run={record}")
    wait_for_step(process, told, 14)
    process.popen.send_signal(signal.SIGUSR2)
    outcome = process.wait()
    assert outcome.status == 1
    assert "stopped by SIGUSR2 at step" in outcome.err
    assert not RunFolder(told.run_folder()).failed
    (step,) = (int(row["step"]) for row in read_metrics(told.run_folder() / "metrics.csv")[-1:])
    assert [path.stem for path in (told.run_folder() / "checkpoints").glob("*.ckpt")] == [f"step-{step:08d}"]
    assert told.run("job=cell", f"run={record}").status == 0
    assert_same(whole.run_folder(), told.run_folder())
