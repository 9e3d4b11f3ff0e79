"""The record of a selection: results/NAME/selection.csv, a row for every run that was tried."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.compare.select import Selection
from experiments.compare.trials import RATE, SPLIT, Trial
from experiments.data import task_label
from experiments.planning.plan import Plan
from experiments.runs import METRICS, read_metrics
from experiments.sweep import model_names
from experiments.system.paths import SELECTION
from zoo.files import write_atomic

COLUMNS = (
    "task",
    "model",
    "color",
    "lr",
    "settings",
    "seed",
    "run",
    f"{SPLIT}_loss",
    "status",
    "seconds",
    "chosen",
    "edge",
    "confirmed_by",
)


def write_record(folder: Path, selections: Sequence[Selection], confirmed: Sequence[Sequence[Plan]]) -> None:
    """Write the record, atomically; of an earlier command's models those stay that this one does not name.

    Columns: the synthetic task with its options (empty for text); the model's name and colour; lr, and the other
    settings as "key=value key=value"; the seed and run of the selection; its loss on the whole validation split (empty
    where it diverged or was pruned); status, "complete", "diverged" or "pruned" (left by compare.halving before its
    last step); seconds of its training; chosen, whether the model is confirmed with these settings: true of the rows of
    all seeds that they were selected by; edge, of a chosen row, the end of the rates tried that it is at; confirmed_by,
    of a chosen row, the runs that confirm it. confirmed: by model, the runs that confirm it.
    """
    names = list(model_names([s.trials[0].planned for s in selections]).values())
    rows = [
        row
        for name, selection, plans in zip(names, selections, confirmed, strict=True)
        for row in _rows(name, selection, plans)
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*_others(folder / SELECTION, {(row["task"], row["model"]) for row in rows}), *rows])
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / SELECTION, out.getvalue())


def _others(path: Path, named: set[tuple[str, str]]) -> list[dict[str, str]]:
    """Rows of an earlier record whose (task, model) are not named; none where that file has other columns."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            return []
        return [row for row in reader if (row["task"], row["model"]) not in named]


def _rows(name: str, selection: Selection, confirmed: Sequence[Plan]) -> Iterator[dict[str, Any]]:
    best = selection.best
    tried = sorted(selection.trials, key=lambda t: (t.settings[RATE], settings_text(t)))
    for chosen, trial in ((one is best, run) for one in tried for run in selection.runs(one)):
        planned = trial.planned
        yield {
            "task": task_label(planned.config.data),
            "model": name,
            "color": planned.layers.color,
            "lr": repr(trial.settings[RATE]),
            "settings": settings_text(trial),
            "seed": planned.config.seed,
            "run": planned.run,
            f"{SPLIT}_loss": repr(trial.loss) if math.isfinite(trial.loss) else "",
            "status": _status(trial),
            "seconds": _seconds(trial),
            "chosen": chosen,
            "edge": selection.edge if chosen else "",
            "confirmed_by": " ".join(p.run for p in confirmed) if chosen else "",
        }


def _status(trial: Trial) -> str:
    if trial.diverged:
        return "diverged"
    return "complete" if trial.planned.folder.complete else "pruned"


def _seconds(trial: Trial) -> str:
    """The seconds of training until the last row of its metrics; empty where it has none."""
    rows = read_metrics(trial.planned.folder.path / METRICS)
    return next((row["seconds"] for row in reversed(rows) if row.get("seconds")), "")


def settings_text(trial: Trial) -> str:
    """The settings of a trial beside its rate, "key=value key=value"."""
    return " ".join(f"{key}={value}" for key, value in trial.settings.items() if key != RATE)
