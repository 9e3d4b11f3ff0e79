"""What happens after something went wrong: kills, damaged checkpoints, a full disk, NaN, a pause."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.program import RUN, Lab, assert_same_run, last_checkpoint, steady_rows
from support.task_lab import TaskLab

from experiments.runs import RunFolder
from experiments.training.lightning_modules import first_bad_module
from zoo.mixers.mesanet import Solver


@pytest.fixture
def unfinished(lab: Lab, finished: Lab) -> Path:
    """A run that was stopped between its last checkpoint and its summary: a copy of the finished one."""
    shutil.copytree(finished.results, lab.results)
    folder = lab.run_folder()
    (folder / "summary.json").unlink()
    return folder


def _checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("*.ckpt"))


@pytest.mark.slow
def test_a_truncated_checkpoint_falls_back_to_the_one_before(lab: Lab, finished: Lab, unfinished: Path):
    before, newest = _checkpoints(unfinished)
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    outcome = lab.done()
    assert f"warning: cannot read {newest}" in outcome.out
    assert str(before) not in outcome.out
    assert_same_run(unfinished, finished.run_folder())


@pytest.mark.slow
def test_a_run_stopped_before_its_summary_only_scores_again(lab: Lab, finished: Lab, unfinished: Path):
    shutil.copy(finished.run_folder() / "model.safetensors", unfinished)
    for place in (unfinished, unfinished / "checkpoints"):
        (place / ".half-written.123.partial").touch()
    written = [path.stat().st_mtime_ns for path in _checkpoints(unfinished)]
    assert lab.here().status == 0
    assert [path.stat().st_mtime_ns for path in _checkpoints(unfinished)] == written
    again, first = RunFolder(unfinished).summary(), RunFolder(finished.run_folder()).summary()
    for key in ("metrics", "steps", "best_step", "stopped", "tokens", "seconds"):
        assert again[key] == first[key], key
    assert not list(unfinished.rglob("*.partial"))
    assert_same_run(unfinished, finished.run_folder())


def test_the_module_is_named_where_finite_numbers_became_infinite():
    """And not a part of it that was only handed them."""

    class Overflowing(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(1, 1)
            self.out = torch.nn.Linear(1, 1)

        def forward(self, x):
            return self.out(x * float("inf"))

    model = torch.nn.Sequential(torch.nn.Identity(), Overflowing())
    assert first_bad_module(model, lambda: model(torch.ones(1, 1))) == "1"


@pytest.mark.slow
def test_divergence_stops_at_once_and_says_where(lab: Lab):
    outcome = lab.here("optim.lr=1e30", "optim.warmup_steps=0", "trainer.checkpoint_every=1")
    run = RunFolder(lab.run_folder())
    failure = run.failure()
    assert outcome.status == 1
    assert outcome.err.count("\n") == 1, outcome.err
    assert failure["kind"] == "NonFinite"
    assert failure["step"] == 1
    assert f"at step 1, first in module '{failure['module']}" in outcome.err
    assert failure["traceback"].startswith("Traceback")
    assert [path.name for path in _checkpoints(run.path)] == ["step-00000001.ckpt"]
    assert not run.complete


@pytest.mark.slow
def test_nan_in_one_module_is_named_and_the_same_command_tries_again(lab, finished, unfinished):
    before, newest = _checkpoints(unfinished)
    newest.unlink()
    sound = before.read_bytes()
    planted = torch.load(before, weights_only=True)
    weight = "model.layers.1.mixer.o_proj.weight"
    planted["state_dict"][weight][0, 0] = torch.nan
    torch.save(planted, before)
    outcome = lab.here()
    failure = RunFolder(unfinished).failure()
    assert outcome.status == 1
    assert failure["step"] == int(before.stem.removeprefix("step-"))
    assert failure["module"].startswith(weight.removeprefix("model."))
    assert _checkpoints(unfinished) == [before]
    before.write_bytes(sound)
    assert lab.here().status == 0
    assert not (unfinished / "failure.json").exists()
    assert_same_run(unfinished, finished.run_folder())


FULL_DISK = r"""
mount -t tmpfs -o size=3m,nr_inodes=100 tmpfs "$DISK" || exit 99
fill() { rm -f "$DISK/ballast"; head -c $1 /dev/zero > "$DISK/ballast" 2>/dev/null; }
for bytes in 9999999 2950000 2700000; do
  fill $bytes; "$@"; echo "status $?" >&2
done
rm "$DISK/ballast"
cp -r "$DISK" "$COPY/broken"
"$@"; echo "status $?" >&2
cp -r "$DISK" "$COPY/whole"
"""


@pytest.mark.long
def test_a_full_disk_ends_a_run_with_a_clear_message(lab: Lab, finished: Lab, tmp_path: Path):
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    copy.mkdir()
    command = [sys.executable, RUN, *lab.arguments(f"results={disk}/results")]
    environment = {**lab.environment(), "DISK": str(disk), "COPY": str(copy)}
    try:
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", FULL_DISK, "sh", *command],
            env=environment,
            cwd=lab.cwd,
            capture_output=True,
            text=True,
            timeout=300,
        )
    except FileNotFoundError:
        pytest.skip("no unshare on this machine")
    if done.returncode == 99 or "unshare:" in done.stderr:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    assert "Traceback" not in done.stderr, done.stderr
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("status")] == ["status 1"] * 3 + ["status 0"], (
        done.stderr
    )
    said = [line for line in lines if line.startswith("error")]
    assert len(said) == 3, done.stderr
    assert all("disk is full" in line and "same command" in line for line in said), done.stderr
    (broken,) = (path.parent for path in copy.glob("broken/results/*/*/config.yaml"))
    (whole,) = (path.parent for path in copy.glob("whole/results/*/*/config.yaml"))
    assert last_checkpoint(broken)["global_step"] < 20, "the disk was not full in the middle of training"
    assert not [path for path in broken.rglob("*") if "partial" in path.name]
    assert steady_rows(broken) == steady_rows(finished.run_folder())[: len(steady_rows(broken))]
    assert_same_run(whole, finished.run_folder())


SHORT = ("trainer.max_steps=2", "trainer.val_every=2")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Lab, pytest.param(TaskLab, marks=pytest.mark.long)], ids=["text", "task"])
@pytest.mark.parametrize(("steps", "told"), [(1, True), (30, False)])
def test_systems_that_are_not_solved_are_told_of(tmp_path: Path, lab: Lab, kind, steps, told):
    place = kind(tmp_path / "here", lab.text, lab.cache)
    outcome = place.done("model=mesanet", *SHORT, f"model.mixers.mesanet.cg_steps={steps}")
    notices = [line for line in outcome.err.splitlines() if "unsolved" in line]
    assert len(notices) == told, outcome.err
    probed = place.done("job=probe", f"runs={place.run_folder().parent}")
    assert ("unsolved" in probed.err) == told


@pytest.mark.slow
def test_a_model_without_such_a_mixer_is_not_looked_at(lab: Lab, monkeypatch):
    monkeypatch.setattr(Solver, "update", None)
    outcome = lab.here(*SHORT)
    assert (outcome.status, "notice" in outcome.err) == (0, False), outcome.err
