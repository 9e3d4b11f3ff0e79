"""A run that is killed at any moment and started again ends as one that was not, bit for bit, probed or not."""

import random
import signal
import time
from pathlib import Path

import pytest
from support.program import Lab, Process, assert_same_run

from experiments.probing import probe_run
from experiments.runs import read_metrics

RECIPE = [
    "trainer.accumulate=2",
    "trainer.log_every=2",
    "trainer.val_every=8",
    "trainer.patience=50",
    "trainer.checkpoint_every=3",
]
PROBED = [*RECIPE, "trainer.probe_every=7", "probe.windows=1"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kills", "steps"), [(1, 40), pytest.param(10, 160, marks=pytest.mark.long)])
def test_random_kills_change_nothing(
    kills: int, steps: int, tmp_path: Path, small_text: Path, shared_cache: Path
):
    seed = random.SystemRandom().randrange(2**32)
    draw = random.Random(seed)
    whole, torn = (Lab(tmp_path / name, small_text, shared_cache) for name in ("whole", "torn"))
    length = f"trainer.max_steps={steps}"
    reference = whole.start(*RECIPE, length)
    reached = []
    part = (steps - 12) // kills
    for at in (
        part * i + draw.randrange(part // 2, part) for i in range(kills)
    ):  # late in each part of the run
        process = torn.start(*PROBED, length)
        _wait_for_step(process, torn, at)
        if draw.random() < 0.4:
            _wait_for_a_half_written_checkpoint(process, torn)
        else:
            time.sleep(draw.uniform(0, 0.1))
        process.popen.send_signal(signal.SIGKILL)
        outcome = process.wait()
        reached.append(_step(torn))
        story = f"seed {seed}, killed at {reached}"
        assert outcome.status == -signal.SIGKILL, f"{story}: {outcome}"
        assert not list(torn.results.glob("*/*/summary.json")), story
    last = torn.run(*PROBED, length)
    assert last.status == 0, f"{story}: {last.err}"
    assert reference.wait().status == 0
    assert_same_run(whole.run_folder(), torn.run_folder(), story)
    rows = probe_run.read(torn.run_folder(), "training")
    assert {row[0] for row in rows} == {*range(7, steps, 7), steps}, story
    assert len({row[:-2] for row in rows}) == len(rows), f"{story}: rows of a step that was done twice"
    assert reached[-1] > steps // 3, f"{story}: restarts did not go on from checkpoints"
    assert not list(torn.run_folder().rglob("*.partial")), story
    assert not list(torn.temp.glob("tmp*")), f"{story}: checkpoints went through the temporary folder"


def _step(lab: Lab) -> int:
    steps = [int(row["step"]) for path in lab.results.glob("*/*/metrics.csv") for row in read_metrics(path)]
    return max(steps, default=0)


def _wait_for_step(process: Process, lab: Lab, at: int) -> None:
    # The rows of the attempt before are cut back only once training starts again: its own are what counts.
    files = {path: path.stat().st_ino for path in lab.results.glob("*/*/metrics.csv")}
    while process.running:
        cut = all(path.stat().st_ino != inode for path, inode in files.items())
        if cut and _step(lab) >= at:
            return
        time.sleep(0.005)


def _wait_for_a_half_written_checkpoint(process: Process, lab: Lab) -> None:
    folder = lab.run_folder() / "checkpoints"
    while process.running and not list(folder.glob("*.partial")):
        time.sleep(0.0005)
