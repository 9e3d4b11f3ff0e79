"""Loading what runs wrote into pandas frames."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from analysis.columns import AUX_PREFIX, METRIC_COLUMNS, METRIC_KEYS, RUN_COLUMNS, SETTING_COLUMNS
from analysis.errors import ResultsError
from analysis.files import write_atomically
from analysis.folders import Unfinished, find_folders, read_run, run_title
from analysis.probes import read_table

PathLike = str | os.PathLike


@dataclass(frozen=True)
class Results:
    """Any number of runs as frames.

    runs: one row per complete run. metrics: every row of their metrics.csv. The columns of both are
    documented in ``analysis.columns`` (RUN_COLUMNS, METRIC_COLUMNS) and in analysis/README.md.
    problems: one sentence for everything that was left out or looks wrong.
    unfinished: one row per folder without a complete run (experiment, run, status, step, reason, folder);
    status is failed, incomplete, broken or foreign. places: the folders that were loaded.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    problems: list[str]
    unfinished: pd.DataFrame
    tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    places: tuple[Path, ...] = ()

    def bench(self, name: str) -> Path | None:
        """A table of job=bench: in one of the loaded folders, or in published/ there or up to two folders above."""
        for place in (path.resolve() for path in self.places):
            around = (folder / "published" for folder in (place, *place.parents[:2]))
            for folder in (place, *around):
                if (folder / name).is_file():
                    return folder / name
        return None

    def table(self, name: str) -> pd.DataFrame:
        """What probes wrote, over all runs that have it: one of `analysis.probes.TABLES`; read at the first call.

        Files that cannot be read are named in `problems` from then on.
        """
        if name not in self.tables:
            self.tables[name], unread = read_table(self.runs, name)
            self.problems.extend(unread)
        return self.tables[name]

    def to_parquet(self, folder: PathLike) -> list[Path]:
        """Write runs.parquet and metrics.parquet into ``folder``, each atomically; returns their paths."""
        frames = {"runs.parquet": self.runs, "metrics.parquet": self.metrics}
        return [write_atomically(Path(folder) / name, frame.to_parquet) for name, frame in frames.items()]


def load_results(path: PathLike | Iterable[PathLike]) -> Results:
    """Load one run folder, one experiment folder, the whole results folder, or a list of such paths.

    Failed, incomplete, broken and foreign folders are left out and reported in ``problems`` and
    ``unfinished``. Raises ResultsError if a path does not exist or if no run is complete.
    """
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(item) for item in path]
    rows, unfinished, problems = [], [], []
    for folder, is_run in _folders(paths):
        outcome = read_run(folder) if is_run else Unfinished(folder, "foreign", "holds no file of a run")
        if isinstance(outcome, Unfinished):
            unfinished.append(outcome)
            problems.append(str(outcome))
        else:
            rows.append(outcome[0])
            problems.extend(outcome[1])
    if not rows:
        raise ResultsError(_nothing_complete(paths, problems))
    runs = _runs_frame(rows)
    metrics, unread = _metrics_frame(runs)
    return Results(runs, metrics, problems + unread, _unfinished_frame(unfinished), places=tuple(paths))


def _folders(paths: list[Path]) -> list[tuple[Path, bool]]:
    found: dict[Path, tuple[Path, bool]] = {}
    for path in paths:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise ResultsError(
                f"{path} {what}; give the folder of a run, of an experiment, or of all results"
            )
        for folder, is_run in find_folders(path):
            found.setdefault(folder.resolve(), (folder, is_run))
    return list(found.values())


def _nothing_complete(paths: list[Path], problems: list[str]) -> str:
    where = ", ".join(map(str, paths)) or "an empty list of folders"
    shown = "".join(f"\n  {problem}" for problem in problems[:10])
    more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
    return (
        f"no complete run in {where}; start the experiment's command (again): "
        f"it skips what is complete and goes on with the rest{shown}{more}"
    )


def _runs_frame(rows: list[dict]) -> pd.DataFrame:
    names = [column.name for column in RUN_COLUMNS if column.name != "label"]
    frame = pd.DataFrame(rows, columns=names)
    frame = frame.astype({column.name: column.dtype for column in RUN_COLUMNS if column.name != "label"})
    frame.insert(names.index("name") + 1, "label", labels(frame, "setting"))
    return frame.sort_values(["experiment", "label", "seed", "run"], ignore_index=True)


def labels(runs: pd.DataFrame, key: str, leave_out: tuple[str, ...] = ()) -> pd.Series:
    """A text for each value of ``key``, a column of hashes: the name; where it has several, also what differs.

    leave_out: columns that ``key`` does not cover. What no column tells apart shows part of its hash.
    """
    labels = runs["name"].astype("str")
    columns = [column for column in SETTING_COLUMNS if column not in leave_out]
    for name, group in runs.groupby("name"):
        if group[key].nunique() == 1:
            continue
        differing = [column for column in columns if group[column].nunique(dropna=False) > 1]
        shown = group[differing].drop(columns="data_fingerprint", errors="ignore")
        described = shown.apply(_describe, axis=1) if not shown.empty else pd.Series("", index=group.index)
        ambiguous = group[key].groupby(described).transform("nunique") > 1
        suffix = described.where(~ambiguous, (described + " #" + group[key].str[:6]).str.strip())
        labels[group.index] = name + " (" + suffix + ")"
    return labels


def _describe(values: pd.Series) -> str:
    return ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
    )


def _metrics_frame(runs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    frames, problems = [], []
    for row in runs.itertuples(index=False):
        where = f"{row.experiment}/{row.run}"
        try:
            raw = pd.read_csv(Path(row.folder) / "metrics.csv", low_memory=False)
        except (OSError, ValueError) as error:
            problems.append(f"{where}: no metric rows: metrics.csv cannot be read ({error})")
            continue
        frame, odd = _clean_metrics(raw)
        problems.extend(f"{where}: metrics.csv: {text}" for text in odd)
        for position, key in enumerate(METRIC_KEYS):
            frame.insert(position, key, getattr(row, key))
        frames.append(frame)
    names = [column.name for column in METRIC_COLUMNS]
    joined = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=names)
    aux = sorted(name for name in joined.columns if name.startswith(AUX_PREFIX))
    types = {column.name: column.dtype for column in METRIC_COLUMNS} | dict.fromkeys(aux, "float64")
    return joined[names + aux].astype(types), problems


def _clean_metrics(raw: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Documented and auxiliary columns only, numbers as numbers; what had to be dropped is said."""
    recorded = [column for column in METRIC_COLUMNS if column.name not in METRIC_KEYS]
    missing = [column.name for column in recorded if column.name not in raw and not column.optional]
    problems = [f"no column {', '.join(missing)}"] if missing else []
    whole = {column.name: column.dtype == "Int64" for column in recorded}
    data, unreadable = {}, 0
    for name in [column.name for column in recorded] + [n for n in raw.columns if n.startswith(AUX_PREFIX)]:
        values = raw[name] if name in raw else pd.Series(None, index=raw.index, dtype="object")
        if name == "split":
            data[name] = values.astype("str")
            continue
        data[name] = pd.to_numeric(values, errors="coerce")
        if whole.get(name):
            data[name] = data[name].where(data[name] % 1 == 0)
        unreadable += int((data[name].isna() & values.notna()).sum())
    if unreadable:
        problems.append(f"{unreadable} cells are not numbers and were left empty")
    return pd.DataFrame(data), problems


def _unfinished_frame(unfinished: list[Unfinished]) -> pd.DataFrame:
    rows = [
        (*run_title(item.folder).split("/"), item.status, item.step, item.reason, str(item.folder))
        for item in unfinished
    ]
    frame = pd.DataFrame(rows, columns=["experiment", "run", "status", "step", "reason", "folder"])
    return frame.astype({"step": "Int64"})
