"""The metric rows of all runs as one frame: documented and auxiliary columns, numbers as numbers."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.loading.columns import AUX_PREFIX, METRIC_COLUMNS, METRIC_KEYS
from analysis.loading.sources import EXPORTED_METRICS, Key, Source, gather, keyed, sources

_RECORDED = [column for column in METRIC_COLUMNS if column.name not in METRIC_KEYS]


def plausible_mfu(mfu: pd.Series) -> pd.Series:
    """Replace MFU above 1 by a missing value: the peak was wrong, so the share is not known."""
    return mfu.where(~(mfu > 1))


def read_metrics(runs: pd.DataFrame, exported: dict[Key, Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return the metrics of all runs, and a sentence for each missing or dropped part."""
    incomplete: list[str] = []

    def read(source: Source) -> pd.DataFrame:
        path = source.path
        if source.shared:
            raw = pd.read_parquet(source.own())
        else:
            text, torn = _whole_lines(source.own())
            raw = pd.read_csv(BytesIO(text), low_memory=False)
            if raw.empty:
                incomplete.append(f"{source.title}: its metrics have no row: it has no curve")
            if torn:
                incomplete.append(f"{source.title}: {path.name}: its last row is cut off and was left out")
        missing = [c.name for c in _RECORDED if c.name not in raw and not c.optional]
        if missing:
            incomplete.append(f"{source.title}: {path.name}: no column {', '.join(missing)}")
        return raw

    found = sources(runs, exported, "metrics.csv", EXPORTED_METRICS)
    raw, owners, unread = gather(runs, found, read)
    frame, unreadable = _clean(raw)
    problems = [
        f"{run.experiment}/{run.run}: metrics.csv: {count} cells are not numbers and were left empty"
        for row, run in enumerate(runs.itertuples(index=False))
        if (count := int(unreadable[owners == row].sum()))
    ]
    return _typed(keyed(runs, owners, frame)), unread + incomplete + problems + _short(runs, owners, frame)


def _whole_lines(path: Path) -> tuple[bytes, bool]:
    """Return a file up to its last end of line and whether more follows: a cut number would read as another number."""
    text = path.read_bytes()
    end = text.rfind(b"\n") + 1
    return (text[:end], end < len(text)) if end else (text, False)


def _short(runs: pd.DataFrame, owners: np.ndarray, frame: pd.DataFrame) -> list[str]:
    """A sentence for every run whose rows end before its last step, which always has a row."""
    if frame.empty:
        return []
    last = frame["step"].groupby(owners).max()
    return [
        f"{run.experiment}/{run.run}: its metrics end at step {last[row]:.0f} of {run.steps}: its curve is short"
        for row, run in enumerate(runs.itertuples(index=False))
        if row in last.index and pd.notna(run.steps) and last[row] < run.steps
    ]


def _clean(raw: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the recorded and auxiliary columns, and for each row the number of cells that are no numbers."""
    whole = {column.name for column in _RECORDED if column.dtype == "Int64"}
    data, unreadable = {}, np.zeros(len(raw), dtype=int)
    for name in [c.name for c in _RECORDED] + sorted(n for n in raw.columns if n.startswith(AUX_PREFIX)):
        values = raw[name] if name in raw else pd.Series(None, index=raw.index, dtype="object")
        if name == "split":
            data[name] = values.astype("str")
            continue
        numbers = _numbers(values)
        # 2**63 and above is no Int64
        data[name] = (
            numbers.where((numbers % 1 == 0) & (numbers.abs() < 2.0**63)) if name in whole else numbers
        )
        unreadable += (data[name].isna() & values.notna()).to_numpy(dtype=int, na_value=0)
    return pd.DataFrame(data), unreadable


def _numbers(values: pd.Series) -> pd.Series:
    """Return the values as numbers, empty where a value is no number."""
    try:
        return pd.to_numeric(values, errors="coerce")
    except OverflowError:  # a whole number of hundreds of digits
        return values.map(_number).astype("float64")


def _number(value: Any) -> float:
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError):
        return math.nan


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    types = {column.name: column.dtype for column in METRIC_COLUMNS}
    types |= {name: "float64" for name in frame.columns if name.startswith(AUX_PREFIX)}
    typed = frame.astype(types)
    return typed.assign(mfu=plausible_mfu(typed["mfu"]))
