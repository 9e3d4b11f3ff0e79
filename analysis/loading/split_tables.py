"""Scores of every run by document, by answer and by length, documents.csv, answers.csv and lengths.csv in its folder.

Made by experiments/scoring/documents.py, experiments/scoring/tasks.py and
experiments/compare/length_generalization.py, whose docstrings give the columns; runs on text have the first, runs of
synthetic tasks the second, those that were asked for longer sequences the third, and runs of before these none.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.loading.columns import METRIC_KEYS
from analysis.loading.sources import Key, Source, gather, keyed, sources


class SplitTable(NamedTuple):
    """A table with rows by split: its columns with their types, that of what was counted, and that of how many."""

    types: dict[str, str]
    counted: str
    of_which: str = ""
    axes: tuple[str, ...] = ()


SPLIT_TABLES = {
    "documents": SplitTable(
        {"split": "str", "document": "int64", "tokens": "int64", "nats": "float64"}, counted="tokens"
    ),
    "answers": SplitTable(
        {
            "split": "str",
            "axis": "str",
            "value": "int64",
            "answers": "int64",
            "right": "int64",
            "nats": "float64",
        },
        counted="answers",
        of_which="right",
        axes=("position", "difficulty"),
    ),
    "lengths": SplitTable(
        {"split": "str", "length": "int64", "answers": "int64", "right": "int64", "nats": "float64"},
        counted="answers",
        of_which="right",
    ),
}


def read_split_table(
    name: str, runs: pd.DataFrame, exported: dict[Key, Path]
) -> tuple[pd.DataFrame, list[str]]:
    """Read a table of SPLIT_TABLES of all runs that have it; returns it, and a sentence for every file that is damaged.

    runs, exported: as in `Results`. Columns: experiment, run, name, label, seed, and those of the table.
    """
    table = SPLIT_TABLES[name]
    found = (
        source
        for source in sources(runs, exported, f"{name}.csv", f"{name}.parquet")
        if os.path.lexists(source.path)
    )
    frame, owners, problems = gather(runs, found, partial(_read, table=table))
    columns = [*METRIC_KEYS, *table.types]
    return keyed(runs, owners, frame.reindex(columns=list(table.types))).reindex(columns=columns), problems


def _read(source: Source, table: SplitTable) -> pd.DataFrame:
    """The file's rows. Raises an error of `sources.UNREADABLE` where it does not hold what it should."""
    path, texts = source.own(), {name: kind for name, kind in table.types.items() if kind == "str"}
    raw = pd.read_parquet(path) if source.shared else pd.read_csv(path, dtype=texts)
    keys = [raw[name] for name in ("experiment", "run")] if source.shared else []
    frame = raw[list(table.types)].astype(table.types)
    if not (frame[table.counted] >= 0).all() or not (frame["nats"].abs() < float("inf")).all():
        raise ValueError(f"a number of {table.counted} or nats is out of range")
    if table.of_which and not frame[table.of_which].between(0, frame[table.counted]).all():
        raise ValueError(f"more are {table.of_which} than there are {table.counted}, or fewer than none")
    if table.axes and not frame["axis"].isin(table.axes).all():
        raise ValueError(f"an axis is none of {', '.join(table.axes)}")
    return pd.concat([*keys, frame], axis=1)
