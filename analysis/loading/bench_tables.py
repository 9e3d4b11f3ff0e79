"""Reading the tables that job=bench writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from analysis.errors import NoData


def read_bench(path: Path, columns: Iterable[str], numbers: Iterable[str]) -> pd.DataFrame:
    """Read a CSV file of job=bench; what is no number in the columns ``numbers`` becomes missing.

    Raises NoData where the file cannot be read or lacks some of ``columns``.
    """
    try:
        rows = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise NoData(f"{path.name} cannot be read ({error})") from error
    missing = [name for name in columns if name not in rows]
    if missing:
        raise NoData(f"{path.name} has no column {', '.join(missing)}")
    return rows.assign(**{name: pd.to_numeric(rows[name], errors="coerce") for name in numbers})
