"""The record of job=compare's selection, selection.csv beside the runs that confirm it.

Made by experiments/compare/record.py, whose docstring gives the columns.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pandas as pd

from analysis.loading.safe_read import read_text

FILE = "selection.csv"
_TEXTS = ("task", "model", "color", "settings", "run", "status", "edge", "confirmed_by")
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
    "chosen",
    "edge",
    "confirmed_by",
)


def read_selection(folder: Path) -> pd.DataFrame:
    """Read the record in a folder; chosen is a bool, lr and validation_loss are numbers. Raises OSError, ValueError.

    task: of synthetic tasks, the task with its options, which is the runs' training_set; empty for text, and in records
    from before there were tasks.
    """
    frame = pd.read_csv(StringIO(read_text(folder, FILE)), dtype=dict.fromkeys(_TEXTS, "str"))
    frame = frame.assign(task=frame.get("task", ""))
    missing = [name for name in COLUMNS if name not in frame]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}")
    numbers = {
        name: pd.to_numeric(frame[name], errors="coerce") for name in ("lr", "validation_loss", "seed")
    }
    texts = {name: frame[name].fillna("") for name in _TEXTS}
    chosen = frame["chosen"].astype("str").str.lower() == "true"
    return frame.assign(**numbers, **texts, chosen=chosen)[list(COLUMNS)]


def none() -> pd.DataFrame:
    """Return the record of no selection."""
    return pd.DataFrame(columns=list(COLUMNS)).astype(
        {"lr": "float64", "validation_loss": "float64", "chosen": "bool"}
    )


def caveats(selection: pd.DataFrame) -> list[str]:
    """Caveats about selected settings: best rates at an end of those tried, runs that diverged."""
    found, chosen = [], selection[selection["chosen"]]
    on = chosen["task"].str.partition(" (")[0] if len(chosen) else ""
    chosen = chosen.assign(model=(chosen["model"] + " on " + on).where(chosen["task"] != "", chosen["model"]))
    for end, way in (("lowest", "lower"), ("highest", "higher")):
        models = chosen.loc[chosen["edge"] == end, "model"]
        if len(models):
            found.append(
                f"the {end} learning rate tried was selected for {', '.join(models)}: a {way} one may be better."
            )
    return found
