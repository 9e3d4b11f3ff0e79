"""Scores of every run by document, documents.csv in its folder.

Made by experiments/document_scores.py, whose docstrings give the columns; runs of before it have none.
"""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from analysis.loading.columns import METRIC_KEYS
from analysis.loading.sources import Key, Source, gather, keyed, sources

NAME = "documents"
_TYPES = {"split": "str", "document": "int64", "tokens": "int64", "nats": "float64"}


def read_documents(runs: pd.DataFrame, exported: dict[Key, Path]) -> tuple[pd.DataFrame, list[str]]:
    """Read the scores of all runs that have them; returns them, and a sentence for every file that cannot be read.

    runs, exported: as in `Results`. Columns: experiment, run, name, label, seed, split, document, tokens, nats.
    """
    found = (
        source
        for source in sources(runs, exported, f"{NAME}.csv", f"{NAME}.parquet")
        if os.path.lexists(source.path)
    )
    frame, owners, problems = gather(runs, found, _read)
    columns = [*METRIC_KEYS, *_TYPES]
    return keyed(runs, owners, frame.reindex(columns=list(_TYPES))).reindex(columns=columns), problems


def _read(source: Source) -> pd.DataFrame:
    """The file's rows. Raises an error of `sources.UNREADABLE` where it does not hold what it should."""
    path = source.own()
    raw = pd.read_parquet(path) if source.shared else pd.read_csv(path, dtype={"split": "str"})
    keys = [raw[name] for name in ("experiment", "run")] if source.shared else []
    frame = raw[list(_TYPES)].astype(_TYPES)
    if not (frame["tokens"] >= 0).all() or not (frame["nats"].abs() < float("inf")).all():
        raise ValueError("a number of tokens or nats is out of range")
    return pd.concat([*keys, frame], axis=1)
