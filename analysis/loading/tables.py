"""Tables beside summaries: metrics, benchmarks, the selection of job=compare, scores by document, answer and length.

Last come synthetic tasks. A run of a task has its name and options as its training set, `mqar (length 32, pairs 4)`,
and the task's name as the last word of its own name, `kda mqar`.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Iterator
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.files import NoData, pictured_cells
from analysis.loading.columns import AUX_PREFIX, METRIC_COLUMNS, METRIC_KEYS, RATES, labels, short_names
from analysis.loading.files import (
    EXPORTED_METRICS,
    NOT_RUNS,
    UNREADABLE,
    Key,
    Source,
    gather,
    keyed,
    read_text,
    sources,
)

# Tables of job=bench.


def read_bench(path: Path, columns: Iterable[str], numbers: Iterable[str]) -> pd.DataFrame:
    """Read a CSV file of job=bench; what is no number in the columns ``numbers`` becomes missing.

    Raises NoData where the file cannot be read or lacks some of ``columns``.
    """
    try:
        rows = pictured_cells(pd.read_csv(path))
    except (OSError, ValueError) as error:
        raise NoData(f"{path.name} cannot be read ({error})") from error
    missing = [name for name in columns if name not in rows]
    if missing:
        raise NoData(f"{path.name} has no column {', '.join(missing)}")
    return rows.assign(**{name: pd.to_numeric(rows[name], errors="coerce") for name in numbers})


# Metric rows of all runs: documented and auxiliary columns, numbers as numbers.

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
            text, torn = texts.get(path) or _whole_lines(source.own())
            raw = known[path] if path in known else pd.read_csv(BytesIO(text), low_memory=False)
            if raw.empty:
                incomplete.append(f"{source.title}: its metrics have no row: it has no curve")
            if torn:
                incomplete.append(f"{source.title}: {path.name}: its last row is cut off and was left out")
        missing = [c.name for c in _RECORDED if c.name not in raw and not c.optional]
        if missing:
            incomplete.append(f"{source.title}: {path.name}: no column {', '.join(missing)}")
        return raw

    files = list(sources(runs, exported, "metrics.csv", EXPORTED_METRICS))
    texts: dict[Path, tuple[bytes, bool]] = {}
    for source in files:
        with contextlib.suppress(OSError):  # which `gather` tells
            if not source.shared:
                texts[source.path] = _whole_lines(source.own())
    known = _read_together({path: text for path, (text, _) in texts.items()})
    raw, owners, unread = gather(runs, iter(files), read)
    frame, unreadable = _clean(raw)
    problems = [
        f"{run.experiment}/{run.run}: metrics.csv: {count} cells are not numbers and were left empty"
        for row, run in enumerate(runs.itertuples(index=False))
        if (count := int(unreadable[owners == row].sum()))
    ]
    return _typed(keyed(runs, owners, frame)), unread + incomplete + problems + _short(runs, owners, frame)


def _read_together(texts: dict[Path, bytes]) -> dict[Path, pd.DataFrame]:
    """The rows of CSV files by path, each header's read as one file, in a third of the time.

    Left out are files that might then be read as something else: with quotes, blank lines or cells that are no numbers.
    """
    alike: dict[bytes, list[Path]] = {}
    for path, text in texts.items():
        head, _, rows = text.partition(b"\n")
        if rows and not any(odd in text for odd in (b'"', b"\r", b"\0", b"\n\n")):
            alike.setdefault(head, []).append(path)
    frames: dict[Path, pd.DataFrame] = {}
    for head, paths in alike.items():
        counts = [texts[path].count(b"\n") - 1 for path in paths]
        joined = b"\n".join([head, b"".join(texts[path].partition(b"\n")[2] for path in paths)])
        try:
            frame = pd.read_csv(BytesIO(joined), low_memory=False)
        except ValueError:  # one of them is told of where it is read alone
            continue
        numbers = frame.drop(columns="split", errors="ignore").dtypes
        if len(frame) == sum(counts) and all(kind in ("int64", "float64") for kind in numbers):
            ends = np.cumsum(counts)
            frames |= {path: frame[end - n : end] for path, n, end in zip(paths, counts, ends, strict=True)}
    return frames


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
    integers = {column.name for column in _RECORDED if column.dtype == "Int64"}
    data, unreadable = {}, np.zeros(len(raw), dtype=int)
    for name in [c.name for c in _RECORDED] + sorted(n for n in raw.columns if n.startswith(AUX_PREFIX)):
        values = raw[name] if name in raw else pd.Series(None, index=raw.index, dtype="object")
        if name == "split":
            data[name] = values.astype("str")
            continue
        numbers = _numbers(values)
        # 2**63 and above is no Int64
        data[name] = (
            numbers.where((numbers % 1 == 0) & (numbers.abs() < 2.0**63)) if name in integers else numbers
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


# The selection of job=compare: selection.csv, whose columns experiments/compare/selection_record.py describes.

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
    frame = pictured_cells(pd.read_csv(StringIO(read_text(folder, FILE)), dtype=dict.fromkeys(_TEXTS, "str")))
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
    notes, chosen = [], selection[selection["chosen"]]
    on = chosen["task"].str.partition(" (")[0] if len(chosen) else ""
    chosen = chosen.assign(model=(chosen["model"] + " on " + on).where(chosen["task"] != "", chosen["model"]))
    for end, way in (("lowest", "lower"), ("highest", "higher")):
        models = chosen.loc[chosen["edge"] == end, "model"].unique()
        if len(models):
            notes.append(
                f"the {end} learning rate tried was selected for {', '.join(models)}: a {way} one may be better."
            )
    return notes


# Scores by document, by answer and by length, in documents.csv, answers.csv and lengths.csv of a run's folder, and of
# the lm-evaluation-harness's tasks, in lm_eval.csv.
#
# experiments/scoring/text.py, experiments/scoring/tasks.py, experiments/compare/length_generalization.py and
# experiments/jobs/lm_eval.py describe their columns. Runs on text have the first, runs of synthetic tasks the second,
# and the others where they were asked for; old runs have none.


class SplitTable(NamedTuple):
    """A table with rows by split: its columns with their types, that of what was counted, and that of how many.

    finite: the column that holds no infinite number; "": none.
    """

    types: dict[str, str]
    counted: str
    of_which: str = ""
    axes: tuple[str, ...] = ()
    finite: str = "nats"


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
    "lm_eval": SplitTable(
        {
            "task": "str",
            "metric": "str",
            "filter": "str",
            "value": "float64",
            "stderr": "float64",
            "samples": "int64",
            "fewshot": "int64",
            "version": "str",
            "limit": "str",
            "command": "str",
        },
        counted="samples",
        finite="",
    ),
}


def read_split_table(
    name: str, runs: pd.DataFrame, exported: dict[Key, Path]
) -> tuple[pd.DataFrame, list[str]]:
    """Read a table of SPLIT_TABLES of all runs that have it; returns it, and a sentence for every file that is damaged.

    runs, exported: as in `Results`. Columns: experiment, run, name, label, seed, and those of the table.
    """
    table = SPLIT_TABLES[name]
    files = [
        source
        for source in sources(runs, exported, f"{name}.csv", f"{name}.parquet")
        if os.path.lexists(source.path)
    ]
    together = _read_alike(files, table)
    if together is None:  # one by one, which names those that are damaged
        frame, owners, problems = gather(runs, iter(files), partial(_read, table=table))
    else:
        frame, owners, problems = *together, []
    columns = [*METRIC_KEYS, *table.types]
    return keyed(runs, owners, frame.reindex(columns=list(table.types))).reindex(columns=columns), problems


def _read(source: Source, table: SplitTable) -> pd.DataFrame:
    """The file's rows. Raises an error of `sources.UNREADABLE` where it does not hold what it should."""
    path, texts = source.own(), {name: kind for name, kind in table.types.items() if kind == "str"}
    raw = pd.read_parquet(path) if source.shared else pd.read_csv(path, dtype=texts)
    keys = [raw[name] for name in ("experiment", "run")] if source.shared else []
    return pd.concat([*keys, _checked(raw, table)], axis=1)


def _read_alike(files: list[Source], table: SplitTable) -> tuple[pd.DataFrame, np.ndarray] | None:
    """The rows of runs' own files, read as one, and of each the row of ``runs``; None where that might misread them."""
    try:
        texts = {source.path: _whole_lines(source.own()) for source in files if not source.shared}
        known = _read_together({path: text for path, (text, torn) in texts.items() if not torn})
        if not files or len(known) < len(files):
            return None
        frames = [known[source.path] for source in files]
        whole = pictured_cells(_checked(pd.concat(frames, ignore_index=True), table))
    except UNREADABLE:
        return None
    rows = [row for source in files for row in source.rows.values()]
    return whole, np.repeat(rows, [len(frame) for frame in frames])


def _checked(raw: pd.DataFrame, table: SplitTable) -> pd.DataFrame:
    frame = raw[list(table.types)].astype(table.types)
    finite = not table.finite or (frame[table.finite].abs() < float("inf")).all()
    if not (frame[table.counted] >= 0).all() or not finite:
        raise ValueError(
            f"a number of {' or '.join(filter(None, (table.counted, table.finite)))} is out of range"
        )
    if table.of_which and not frame[table.of_which].between(0, frame[table.counted]).all():
        raise ValueError(f"more are {table.of_which} than there are {table.counted}, or fewer than none")
    if table.axes and not frame["axis"].isin(table.axes).all():
        raise ValueError(f"an axis is not one of {', '.join(table.axes)}")
    return frame


# Synthetic tasks: what they are called, and runs of one model on several of them.

_OPTION = re.compile(r", (?=\w+ )")


def task_names(runs: pd.DataFrame) -> pd.Series:
    """Return the task of every run, missing of those on text: "mqar", or "mqar (pairs 4)" where options differ.

    runs: with data, training_set and chance (`Results.runs`).
    """
    of_task = runs["chance"].notna()
    names = runs["data"].where(of_task).astype("object")
    for name, group in runs[of_task].groupby("data"):
        known = {text: _options(text) for text in group["training_set"].unique()}
        if len(known) > 1:
            shown = {text: _differing(options, list(known.values())) for text, options in known.items()}
            names[group.index] = group["training_set"].map(
                lambda text, of=name, by=shown: f"{of} ({by[text]})"
            )
    return names.where(of_task, None).astype("str")


def _options(text: str) -> dict[str, str]:
    """The options in a training set's name, `mqar (length 32, pairs 4)`, by name."""
    inside = str(text).partition(" (")[2].removesuffix(")")
    return {key: value for key, _, value in (each.partition(" ") for each in _OPTION.split(inside))}


def _differing(options: dict[str, str], every: list[dict[str, str]]) -> str:
    """Those options in which one differs from the others: "pairs 4"."""
    differences = [
        f"{key} {value}" for key, value in options.items() if any(other.get(key) != value for other in every)
    ]
    return ", ".join(differences)


def architectures(runs: pd.DataFrame) -> pd.Series:
    """Return the names of runs without the name of their task: "kda" for "kda mqar"."""
    last = " " + runs["data"].astype("str")
    stripped = [
        name.removesuffix(word) if of_task else name
        for name, word, of_task in zip(runs["name"].astype("str"), last, runs["chance"].notna(), strict=True)
    ]
    return pd.Series(stripped, index=runs.index, dtype="str")


def model_names(runs: pd.DataFrame) -> pd.Series:
    """Return what the models of task runs are called on every task: their label without task and learning rates."""
    return labels(runs.assign(name=architectures(runs)), "sweep", RATES, within="training_set")


def series_names(runs: pd.DataFrame) -> pd.Series:
    """Return the names of architectures, for series of models that differ in size: without words that all share."""
    return short_names(architectures(runs))


def by_task(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the runs on text ("") and those of every task, as far as there are any, with the task's name."""
    groups = runs.groupby(runs["task"].fillna(""), sort=True)
    return [(str(task), group) for task, group in groups]
