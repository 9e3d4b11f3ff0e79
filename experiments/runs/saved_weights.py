"""Finding a run's weights: the best in its folder, others in weights/step-N, the newest in its checkpoints."""

from __future__ import annotations

import json
import re
from pathlib import Path

from experiments.runs.folders import SUMMARY
from zoo.errors import UserError
from zoo.io import CARD, WEIGHTS, read_card

FOLDER = "weights"
BEST, LAST = "best", "last"


def step_folder(run: Path, step: int) -> Path:
    """The folder that the weights of a step are exported to."""
    return run / FOLDER / f"step-{step:08d}"


def available(run: Path) -> dict[int, Path]:
    """Step -> its weights, a folder or checkpoint for `zoo.load`; the best only where their step was recorded."""
    found = {_step(path): path for path in run.glob("checkpoints/step-*.ckpt")}
    whole = (
        path for path in run.glob(f"{FOLDER}/step-*") if all((path / x).is_file() for x in (WEIGHTS, CARD))
    )
    found |= {_step(path): path for path in whole}
    best = read_card(run).get("step")
    if isinstance(best, int):
        found[best] = run
    return {step: path for step, path in sorted(found.items()) if step}


def find(run: Path, at: str) -> tuple[Path, int | None]:
    """The path of a complete run's weights at best, last or a step, and their step (None: not recorded).

    Raises UserError, naming the available steps, where that one is not among them.
    """
    if at == BEST:
        return run, read_card(run).get("step")
    found = available(run)
    step = _last(run, found) if at == LAST else int(at)
    if step not in found:
        there = ", ".join(f"{s:,}{' (best)' if found[s] == run else ''}" for s in found) or "no known step"
        raise UserError(
            f"{run} has no weights of {'its last step, ' if at == LAST else 'step '}{step:,}, but of {there}; "
            f"give probe.at={BEST} or a step that all runs have, or train with trainer.keep_steps=[{step}]"
        )
    return found[step], step


def check(at: str | None) -> None:
    """Raise UserError where `probe.at` is none of best, last and a step."""
    if at not in (None, BEST, LAST) and not re.fullmatch("[1-9][0-9]*", str(at)):
        raise UserError(
            f"probe.at={at} must be {BEST}, {LAST} or the number of a step (null: as the run was configured)"
        )


def _last(run: Path, found: dict[int, Path]) -> int:
    """The last step that a run took."""
    taken = json.loads((run / SUMMARY).read_text()).get("steps")
    return taken if isinstance(taken, int) else max(found, default=0)


def _step(path: Path) -> int:
    digits = path.stem.removeprefix("step-")
    return int(digits) if digits.isdigit() else 0
