"""sweep.engine=list: a file with a command a cell, and the records that the commands train from."""

import dataclasses
import re
import shlex
import subprocess
from types import SimpleNamespace

import pytest
from support.program import ROOT, Lab

from experiments.engines.command_list import CommandList
from experiments.engines.engine import read_record, write_record
from experiments.jobs import cell
from experiments.planning.plan import plan
from experiments.runs import NODES, RunFolder
from experiments.system import signals
from zoo.errors import UserError

PAGE = ROOT / "docs" / "cluster.md"
LISTED = ["--multirun", "seed=0,1", "sweep.engine=list", "trainer.max_steps=4"]


@pytest.mark.slow
def test_every_cell_gets_a_command_and_a_command_completes_its_cell(lab: Lab, monkeypatch):
    outcome = lab.done(*LISTED)
    assert "2 cells: 0 complete, 2 to train" in outcome.out
    commands = lines_of(lab)
    assert len(commands) == 2
    assert f"2 cells to train, one command per line: {lab.results}/default/cells.txt (2 lines)" in outcome.out
    assert (lab.results / "default" / NODES).exists(), "cells of the file may run on several machines"
    word = shlex.split(commands[0])[-1]
    monkeypatch.setattr(
        signals, "pause_on", lambda *signals: None
    )  # the handler would stay with this process
    done = lab.done("job=cell", word)
    assert done.out.startswith("complete: ")
    assert lab.here("job=cell", word).out.startswith("already complete: ")
    again = lab.here(*LISTED)
    assert "2 cells: 1 complete, 1 to train" in again.out
    assert "1 cells to train" in again.out
    assert lines_of(lab) == commands, "a job array that is under way names cells by their lines"


@pytest.mark.slow
def test_lines_keep_their_numbers_and_hold_no_command_of_somebody_else(lab: Lab):
    lab.here("--multirun", "seed=1,2", "sweep.engine=list")
    first = lines_of(lab)
    path = lab.results / "default" / "cells.txt"
    path.write_text("".join(f"touch {lab.folder}/harm; {line}\n" for line in first))
    assert "(3 lines)" in lab.here("--multirun", "seed=0,1", "sweep.engine=list").out
    assert lines_of(lab)[:2] == first
    assert len(lines_of(lab)) == 3


def lines_of(lab: Lab) -> list[str]:
    return (lab.results / "default" / "cells.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("name", "said"), [("a\nb", "a line break"), ("${a}", "a command would interpolate")]
)
def test_a_folder_that_no_command_can_name_is_refused_before_anything_is_written(lab, tmp_path, name, said):
    (config,) = lab.compose()
    planned = dataclasses.replace(plan(config), folder=RunFolder(tmp_path / name / "run"))
    with pytest.raises(UserError, match=f"{said}.* give another folder with results="):
        CommandList([planned])
    assert not (tmp_path / name).exists()


def test_the_signal_that_the_page_has_slurm_send_is_the_one_that_a_cell_heeds(monkeypatch):
    (line,) = [row for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("sbatch ")]
    (sent,) = re.findall(r"--signal=(\w+@\d+) ", line)
    assert '"srun $(sed' in line, "Slurm signals the steps of a job, and no shell"
    assert f"--signal={sent}" in cell.run.__doc__
    heeded = []
    monkeypatch.setattr(signals, "pause_on", lambda *signals: heeded.extend(signals))
    with pytest.raises(UserError, match="No such file"):
        cell.run(SimpleNamespace(run="missing/.cells/0.json", data=SimpleNamespace(cache_dir=None)))
    assert [number.name for number in heeded] == [f"SIG{sent.partition('@')[0]}"]


@pytest.mark.long
def test_a_command_works_in_a_shell_of_any_folder(lab: Lab, tmp_path):
    assert lab.here(*LISTED).status == 0
    line = lines_of(lab)[1]
    subprocess.run(line, shell=True, check=True, cwd=tmp_path, env=lab.environment())
    assert len(list(lab.results.glob("*/*/summary.json"))) == 1


@pytest.mark.parametrize(
    "words", [["model=transformer", "match=params"], ["model=nsa", "optim.lr_min_ratio=0.1"]]
)
@pytest.mark.slow
def test_a_record_holds_the_whole_plan(lab: Lab, words: list[str]):
    (config,) = lab.compose(*words)
    planned = plan(config)
    assert read_record(write_record(planned)) == planned


@pytest.mark.slow
def test_a_bad_record_is_refused_in_a_line(lab: Lab):
    (config,) = lab.compose()
    path = write_record(plan(config))
    whole = path.read_text()
    for text, said in (
        (whole[:100], "is not a cell's record"),
        (whole.replace('"seed"', '"sead"'), "is not a cell's record|sead"),
        (whole.replace('"seed": 0', '"seed": 1'), "does not hold the cell that its name says"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            read_record(path)
    path.unlink()
    error = lab.refused("job=cell", f"run={path}")
    assert "No such file or directory; give the sweep's command again" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep.engine=slrum"], "did you mean 'slurm'"),
        (["sweep.action=cancel"], "sweep.action=cancel needs sweep.engine=slurm or ray"),
        (["job=cell"], "job=cell needs run="),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(lab: Lab, words: list[str], said: str):
    assert said in lab.refused(*words)
