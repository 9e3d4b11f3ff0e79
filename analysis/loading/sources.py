"""Sources of the rows of runs: a file in every run's own folder, or the files of an exported folder.

`Results.to_parquet` exports: runs.parquet, metrics.parquet and the tables of probes, over all runs, in one folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.loading.columns import METRIC_KEYS, RUN_COLUMNS
from analysis.loading.folders import (
    CLOSED,
    EXPORT,
    EXPORTED_RUNS,
    FOREIGN,
    LINK,
    NEEDED,
    Broken,
    Unfinished,
    read_run,
)
from analysis.loading.safe_read import own_file

EXPORTED_METRICS = "metrics.parquet"
# Exceptions raised by reading a damaged or foreign file; pyarrow's errors are subclasses of these.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, NotImplementedError, OverflowError)

Key = tuple[str, str]  # experiment, run


@dataclass(frozen=True)
class Source:
    """A file in a folder with the rows of `Results.runs` it covers, by experiment and run, and its name in messages."""

    folder: Path
    file: str
    rows: dict[Key, int]
    title: str
    shared: bool

    @property
    def path(self) -> Path:
        """The path of the file, not yet checked for links (`own`)."""
        return self.folder / self.file

    def own(self) -> Path:
        """Return the path of the file; raises OSError if it is missing or not inside its folder."""
        return own_file(self.folder, self.file)

    def share(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
        """Return the rows of this source's runs, and for each its row of `Results.runs`. Raises KeyError."""
        if not self.shared:
            (row,) = self.rows.values()
            return frame, np.full(len(frame), row)
        keys = zip(frame["experiment"], frame["run"], strict=True)
        rows = np.array([self.rows.get(key, -1) for key in keys], dtype=int)
        return frame[rows >= 0], rows[rows >= 0]


def sources(runs: pd.DataFrame, exported: dict[Key, Path], own: str, shared: str) -> Iterator[Source]:
    """Yield the files to read: ``own`` in the folders of runs, ``shared`` in the folders of exports."""
    exports: dict[Path, dict[Key, int]] = {}
    for row, run in enumerate(runs.itertuples(index=False)):
        key = (run.experiment, run.run)
        if key in exported:
            exports.setdefault(exported[key], {})[key] = row
        else:
            yield Source(Path(run.folder), own, {key: row}, "/".join(key), shared=False)
    for folder, rows in exports.items():
        yield Source(folder, shared, rows, str(folder), shared=True)


def gather(
    runs: pd.DataFrame, found: Iterator[Source], read: Callable[[Source], pd.DataFrame]
) -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    """Read all rows, in the order of the runs; returns them, the row of ``runs`` of each, and the problems met."""
    frames, rows, problems = [], [], []
    for source in found:
        try:
            frame, owners = source.share(read(source))
        except UNREADABLE as error:
            reason = f"no column {error}" if isinstance(error, KeyError) else error
            problems.append(f"{source.title}: {source.path.name} cannot be read ({reason})")
            continue
        frames.append(frame)
        rows.append(owners)
    if not frames:
        return pd.DataFrame(), np.array([], dtype=int), problems
    owners = np.concatenate(rows)
    order = np.argsort(owners, kind="stable")
    return pd.concat(frames, ignore_index=True).iloc[order].reset_index(drop=True), owners[order], problems


def keyed(runs: pd.DataFrame, owners: np.ndarray, frame: pd.DataFrame) -> pd.DataFrame:
    """Prepend the columns that identify the run of each row."""
    keys = runs[list(METRIC_KEYS)].iloc[owners].reset_index(drop=True)
    return pd.concat([keys, frame.drop(columns=METRIC_KEYS, errors="ignore")], axis=1)


def read_folder(folder: Path, kind: str) -> tuple[list[dict[str, Any]], list[str]] | Unfinished:
    """Read the runs in a folder as rows, and the problems met; an `Unfinished` if there are none."""
    if kind == FOREIGN:
        return Unfinished(folder, "foreign", "holds no file of a run")
    if kind == CLOSED:
        return Unfinished(folder, "broken", "may not be opened: no permission")
    if kind == LINK:
        return Unfinished(
            folder, "foreign", f"is a link to {folder.resolve()}; to have that too, name it as well"
        )
    if kind == EXPORT:
        try:
            return _read_exported(folder)
        except Broken as error:
            return Unfinished(folder, "broken", str(error))
    outcome = read_run(folder)
    return outcome if isinstance(outcome, Unfinished) else ([outcome[0]], outcome[1])


def _read_exported(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The runs that were exported to a folder, as rows, and the problems met. Raises Broken."""
    try:
        frame = pd.read_parquet(own_file(folder, EXPORTED_RUNS))
        typed = frame.astype({c.name: c.dtype for c in RUN_COLUMNS if c.name in frame})
    except UNREADABLE as error:
        raise Broken(f"{EXPORTED_RUNS} cannot be read ({error})") from error
    missing = [c.name for c in RUN_COLUMNS if c.name not in typed and not c.optional]
    needed = [*NEEDED, "folder", "setting"]
    if set(needed) & set(missing):
        raise Broken(f"{EXPORTED_RUNS} has no column {', '.join(missing)}")
    problems = [f"{folder}: {EXPORTED_RUNS} lacks {', '.join(missing)}"] if missing else []
    whole = typed[needed].notna().all(axis=1)
    if not whole.all():
        lost = f"{(~whole).sum()} of {len(typed)} rows without {', '.join(needed[:-1])} or {needed[-1]}"
        problems.append(f"{folder}: {EXPORTED_RUNS}: {lost} were left out")
        typed = typed[whole]
    rows = typed.astype("object").where(typed.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows], problems
