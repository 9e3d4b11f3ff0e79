"""The record of job=compare's selection, selection.csv beside the runs that confirm it.

Made by experiments/compare/selection_record.py, whose docstring gives the columns.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path

import pandas as pd

from analysis.loading.folders import NOT_RUNS
from analysis.loading.safe_read import read_text

FILE = "selection.csv"
_TEXTS = ("task", "model", "color", "settings", "run", "status", "edge", "confirmed_by")
_NUMBERS = ("lr", "validation_loss", "seed", "seconds")
COLUMNS = (
    "task",
    "model",
    "color",
    "lr",
    "settings",
    "seed",
    "run",
    "validation_loss",
    "status",
    "seconds",
    "chosen",
    "edge",
    "confirmed_by",
)


def folders(places: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders that may hold a record: those given, and of a folder of experiments these."""
    for place in places:
        yield place
        with contextlib.suppress(OSError):  # a file, or a folder that may not be read, which others tell
            yield from sorted(each for each in place.iterdir() if each.name not in NOT_RUNS and each.is_dir())


def read_selection(folder: Path) -> pd.DataFrame:
    """Read the record in a folder; chosen is a bool, lr and validation_loss are numbers. Raises OSError, ValueError.

    A row is a run: settings that several seeds selected have a chosen row for each (compare.selection_seeds).
    task: of synthetic tasks, the task with its options, which is the runs' training_set; empty for text, and in records
    from before there were tasks. seconds, of training: NaN in records from before they were kept.
    """
    frame = pd.read_csv(StringIO(read_text(folder, FILE)), dtype=dict.fromkeys(_TEXTS, "str"))
    frame = frame.assign(task=frame.get("task", ""), seconds=frame.get("seconds", math.nan))
    missing = [name for name in COLUMNS if name not in frame]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}")
    numbers = {name: pd.to_numeric(frame[name], errors="coerce") for name in _NUMBERS}
    texts = {name: frame[name].fillna("") for name in _TEXTS}
    chosen = frame["chosen"].astype("str").str.lower() == "true"
    return frame.assign(**numbers, **texts, chosen=chosen)[list(COLUMNS)]


def none() -> pd.DataFrame:
    """Return the record of no selection."""
    return pd.DataFrame(columns=list(COLUMNS)).astype(
        {"lr": "float64", "validation_loss": "float64", "seconds": "float64", "chosen": "bool"}
    )


def caveats(selection: pd.DataFrame) -> list[str]:
    """Caveats about selected settings: best rates at an end of those tried, runs that diverged."""
    found, chosen = [], selection[selection["chosen"]]
    on = chosen["task"].str.partition(" (")[0] if len(chosen) else ""
    chosen = chosen.assign(model=(chosen["model"] + " on " + on).where(chosen["task"] != "", chosen["model"]))
    for end, way in (("lowest", "lower"), ("highest", "higher")):
        models = chosen.loc[chosen["edge"] == end, "model"].unique()
        if len(models):
            found.append(
                f"the {end} learning rate tried was selected for {', '.join(models)}: a {way} one may be better."
            )
    return found
