"""sweep.engine=list: a file with a command a cell, and the records that the commands train from."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from support.program import Lab

from experiments.engines.cell import read_record, write_record
from experiments.plan import plan
from experiments.runs import NODES
from zoo.errors import UserError

LISTED = ["--multirun", "seed=0,1", "sweep.engine=list", "trainer.max_steps=4"]


@pytest.mark.slow
def test_every_cell_gets_a_command_and_a_command_completes_its_cell(lab: Lab):
    outcome = lab.here(*LISTED)
    assert outcome.status == 0, outcome
    assert "2 cells: 0 complete, 2 to train" in outcome.out
    commands = (lab.results / "default" / "cells.txt").read_text().splitlines()
    assert len(commands) == 2
    assert f"2 commands, one a line: {lab.results}/default/cells.txt" in outcome.out
    assert (lab.results / "default" / NODES).exists(), "cells of the file may run on several machines"
    word = shlex.split(commands[0])[-1]
    done = lab.here("job=cell", word)
    assert done.status == 0, done
    assert done.out.startswith("complete: ")
    assert lab.here("job=cell", word).out.startswith("already complete: ")
    again = lab.here(*LISTED)
    assert "2 cells: 1 complete, 1 to train" in again.out
    assert (lab.results / "default" / "cells.txt").read_text().splitlines() == commands[1:]


@pytest.mark.long
def test_a_command_works_in_a_shell_of_any_folder(lab: Lab, tmp_path):
    assert lab.here(*LISTED).status == 0
    line = (lab.results / "default" / "cells.txt").read_text().splitlines()[1]
    subprocess.run(line, shell=True, check=True, cwd=tmp_path, env=lab.environment())
    assert len(list(lab.results.glob("*/*/summary.json"))) == 1


@pytest.mark.parametrize(
    "words", [["model=transformer", "match=params"], ["model=nsa", "optim.lr_min_ratio=0.1"]]
)
def test_a_record_holds_the_whole_plan(lab: Lab, words: list[str]):
    (config,) = lab.compose(*words)
    planned = plan(config)
    assert read_record(write_record(planned)) == planned


def test_a_bad_record_is_refused_in_a_line(lab: Lab):
    (config,) = lab.compose()
    path = write_record(plan(config))
    whole = path.read_text()
    for text, said in (
        (whole[:100], "is no cell's record"),
        (whole.replace('"seed"', '"sead"'), "is no cell's record|sead"),
        (whole.replace('"seed": 0', '"seed": 1'), "does not hold the cell that its name says"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            read_record(path)
    path.unlink()
    outcome = lab.here("job=cell", f"run={path}")
    assert outcome.status == 2
    assert "No such file or directory; give the sweep's command again" in outcome.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep.engine=slrum"], "did you mean 'slurm'"),
        (["sweep.action=cancel"], "sweep.action=cancel is of sweep.engine=slurm and ray"),
        (
            ["sweep.engine=slurm", "sweep.slurm.cluster=local", "sweep.action=submit"],
            "cluster=local is this machine",
        ),
        (["sweep.engine=slurm", "sweep.slurm.minutes=2"], "leaves no time before sweep.slurm.signal_s=120"),
        (["sweep.engine=slurm", "sweep.slurm.more=[exclusive]"], "write options as name=value"),
        (
            ["sweep.engine=ray", "sweep.ray.poll_s=0"],
            "sweep.ray.poll_s=0.0 must be a number above 0",
        ),
        (["job=cell"], "job=cell needs run="),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(lab: Lab, words: list[str], said: str):
    outcome = lab.here(*words)
    assert outcome.status == 2
    assert said in outcome.err
    assert not lab.left_behind()


def test_a_machine_without_slurm_is_told_so(lab: Lab, monkeypatch):
    pytest.importorskip("submitit", reason="sweep.engine=slurm needs submitit (the extra slurm)")
    monkeypatch.setenv("PATH", "")
    outcome = lab.here("sweep.engine=slurm")
    assert outcome.status == 2, outcome
    assert "there is no srun here, and sweep.engine=slurm needs a machine that submits jobs" in outcome.err
    assert not list(lab.results.rglob("*.json"))
