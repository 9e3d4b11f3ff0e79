"""`load_results` and `Results`: the runs of some folders as pandas frames, with the tables that probes wrote."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis import files
from analysis.files import ResultsError, unknown, word, write_atomically, write_small_table
from analysis.loading import tables
from analysis.loading.columns import METRIC_COLUMNS, METRIC_KEYS, RUN_COLUMNS, Column, labels, option_names
from analysis.loading.files import (
    EXPORT,
    EXPORTED_METRICS,
    EXPORTED_RUNS,
    LINK,
    UNREADABLE,
    Key,
    Source,
    Unfinished,
    find_folders,
    gather,
    keyed,
    leads_out,
    read_folder,
    read_text,
    readable,
    run_title,
    sources,
)
from analysis.loading.tables import SPLIT_TABLES, plausible_mfu, read_metrics, read_split_table, task_names

# Tables of a run's folder probes/. `results.table("measures")` gives one frame over all runs; each row names its run.

FOLDER = "probes"
RECORD = "probes.json"
"""Written last: the settings, code and machine of the pass that made the tables in the same folder."""
_TOKEN_OF_RUN = ["experiment", "run", "token"]
_KEYS = tuple(column for column in RUN_COLUMNS if column.name in METRIC_KEYS)


def _column(name: str, dtype: str, meaning: str, unit: str = "", *, later: bool = False) -> Column:
    """Return a column; later: tables written by earlier versions lack it, and it is empty there."""
    return Column(name, dtype, name, unit, meaning, optional=later)


_LAYER = _column("layer", "Int64", "from 0; as many as there are layers: after the last; empty: whole model")
_PART = _column("part", "str", "mixer, channel, head, or empty for the whole model")
_BLOCK = _column("block", "str", "name of the mixer or channel mixer")
_HEAD = _column("head", "Int64", "from 0; empty where there are no heads")
_POSITION = _column("position", "Int64", "position in the sentence, from 0")
_TOKEN = _column("token", "Int64", "token id")
_TEXT = _column("text", "str", "the token as text")
_SPLIT = _column("split", "str", "split of the text that was read", later=True)
_ROUTE = (
    *(_LAYER, _PART, _BLOCK, _HEAD, _POSITION),
    _column("rank", "Int64", "0: the first choice"),
    _column("choice", "Int64", "timeline, memory or expert"),
    _column("probability", "float64", "of this choice"),
)

TABLES: dict[str, tuple[Column, ...]] = {
    "measures": (
        _column("step", "Int64", "optimiser steps done", "steps"),
        _LAYER,
        _PART,
        _BLOCK,
        _HEAD,
        _column("axis", "str", "what start and end count: position, distance, expert, rank, step, quantile"),
        _column("start", "float64", "first value of the bucket"),
        _column("end", "float64", "one past the last; of a quantile: the quantile"),
        _column("measure", "str", "what the number is"),
        _column("value", "float64", "the number"),
        _column("count", "Int64", "observations it is the mean of"),
        _SPLIT,
    ),
    "maps": (
        _LAYER,
        _BLOCK,
        _HEAD,
        _column("kind", "str", "attention, or selection (1: may be read)"),
        _column("query", "Int64", "position in the sentence"),
        _column("key", "Int64", "position in the sentence"),
        _column("weight", "float64", "what of the key goes into the query; pairs below 1e-3 are left out"),
    ),
    "sentence": (
        *(_POSITION, _TOKEN, _TEXT),
        _column("given", "str", "the text that probe.sentence gave; empty: held-out text", later=True),
    ),
    "routes": _ROUTE,
    "alternatives": _ROUTE,
    "assignments": (
        _LAYER,
        _PART,
        _BLOCK,
        _HEAD,
        _column("choice", "Int64", "first choice: timeline, memory or expert"),
        _TOKEN,
        _TEXT,
        _column("count", "Int64", "how often a token of this kind went there"),
        _SPLIT,
    ),
    "samples": (
        _column("prompt", "str", "what the model was given"),
        _column("text", "str", "what it wrote after that"),
        _column("temperature", "float64", "0: the most likely token"),
        _column("sample_seed", "Int64", "seed of the sampling"),
        _column("tokens_per_second", "float64", "decoding speed, prompt included", "tokens/s"),
    ),
}
"""Columns of the tables by name.

`training` is `measures` taken while a run trained; `alternatives` has what routers did not choose, with ranks that go
on from those of `routes`.
"""
TABLES["training"] = TABLES["measures"]


def read_table(
    runs: pd.DataFrame, name: str, exported: dict[Key, Path] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Read a table of all runs that have it; returns it and a sentence for every file that cannot be read.

    runs, exported: as in `Results`. Columns: those of TABLES[name] after experiment, run, name, label, seed.
    """
    found = list(_existing(runs, name, exported))
    together = _read_together(found, TABLES[name])
    if together is None:
        frame, owners, problems = gather(runs, iter(found), lambda source: _read(source, TABLES[name]))
    else:
        frame, owners, problems = *together, []
    columns = (*_KEYS, *TABLES[name])
    whole = keyed(runs, owners, frame.reindex(columns=[c.name for c in TABLES[name]]))
    return whole.astype({c.name: c.dtype for c in columns}), problems


_ARROW = {"Int64": pa.int64(), "float64": pa.float64(), "str": pa.string()}


def _read_together(
    found: list[Source], columns: tuple[Column, ...]
) -> tuple[pd.DataFrame, np.ndarray] | None:
    """Read the files of runs' own folders column by column, and the row of ``runs`` of each of their rows.

    None where one is an export or not quite as it is written today: then each is read by itself, ten times as slow.
    """
    schema = pa.schema([(column.name, _ARROW[column.dtype]) for column in columns])
    read, rows = [], []
    for source in found:
        try:
            with pq.ParquetFile(source.own()) as file:  # a third of what pq.read_table takes for a small file
                table = file.read(use_threads=False).replace_schema_metadata(None)
        except UNREADABLE:
            return None
        absent = [c.name for c in columns if c.optional and c.name not in table.column_names]
        for name in absent:
            table = table.append_column(name, pa.nulls(len(table), schema.field(name).type))
        if source.shared or not set(schema.names) <= set(table.column_names):
            return None
        read.append(table.select(schema.names))
        if any(not field.type.equals(schema.field(field.name).type) for field in read[-1].schema):
            return None
        rows += [(row, len(table)) for row in source.rows.values()]
    if not read:
        return None
    whole = pa.concat_tables(table.cast(schema) for table in read)
    frame = whole.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame, np.repeat([row for row, _ in rows], [length for _, length in rows])


def columns_of(path: Path, name: str) -> tuple[Column, ...]:
    """Return the columns of a probe table with the units and meanings in its file; older files: those of TABLES."""
    metadata = {field.name: field.metadata or {} for field in pq.read_schema(path)}
    return tuple(
        column._replace(
            unit=metadata.get(column.name, {}).get(b"unit", column.unit.encode()).decode(),
            meaning=metadata.get(column.name, {}).get(b"meaning", column.meaning.encode()).decode(),
        )
        for column in TABLES[name]
    )


def table_columns(
    runs: pd.DataFrame, name: str, exported: dict[Key, Path] | None = None
) -> tuple[Column, ...]:
    """Return the columns of `read_table`: `columns_of` the first file that can be read, else TABLES[name]."""
    for source in _existing(runs, name, exported):
        with contextlib.suppress(OSError, ValueError):
            return (*_KEYS, *columns_of(source.own(), name))
    return (*_KEYS, *TABLES[name])


def _existing(runs: pd.DataFrame, name: str, exported: dict[Key, Path] | None) -> Iterator[Source]:
    file = f"{name}.parquet"
    return (s for s in sources(runs, exported or {}, f"{FOLDER}/{file}", file) if _is_there(s.path))


def records(results: Results) -> list[str | None]:
    """Return the text of every run's probes.json, None where it cannot be read."""
    return results.texts(f"{FOLDER}/{RECORD}")


def interrupted(results: Results) -> list[str]:
    """Return experiment/run of runs whose last probe pass did not finish: their tables may mix two passes."""
    found = zip(results.run_folders(), records(results), results.runs.itertuples(), strict=True)
    return [
        f"{run.experiment}/{run.run}"
        for home, record, run in found
        if home is not None and record is None and _tables(home)
    ]


def _tables(home: Path) -> bool:
    names = set(TABLES) - {"training"}
    return any(_is_there(home / FOLDER / f"{name}.parquet") for name in names)


def advice(results: Results) -> str:
    """Return the job=probe command that makes missing tables, as part of a sentence."""
    homes = [word("runs", home) for home in _homes(results)]
    others = f" (and {files.listing(homes[1:], limit=3)})" if homes[1:] else ""
    return f"python run.py job=probe {homes[0]}{others} makes it where the blocks have it"


def _homes(results: Results) -> list[str]:
    """Return the folders that hold the runs; for exported runs without one, the folder of all experiments."""
    if len(results.places) == 1 and not results.exported:
        return [str(results.places[0])]
    found = []
    for run in results.runs.itertuples():
        home = Path(run.folder).parent
        gone = (run.experiment, run.run) in results.exported and not os.path.isdir(run.folder)
        found.append(f"results/{run.experiment}" if gone else str(home))
    return list(dict.fromkeys(found))


def _is_there(path: Path) -> bool:
    """Return whether a file exists or its folder may not be entered: reading it then gives the error."""
    try:
        return path.is_file()
    except PermissionError:
        return True


def thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `assignments` with the text of a token at a run's first row of it only; `filled` is the inverse.

    The texts are half of the file, and say nothing that the numbers of tokens do not.
    """
    tokens = frame.groupby(_TOKEN_OF_RUN, sort=False)["text"]
    if frame["text"].isna().any() or not tokens.transform("first").equals(frame["text"]):
        return frame
    return frame.assign(text=frame["text"].where(tokens.cumcount() == 0))


def filled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table of many runs with the texts that `thinned` left out."""
    if not {*_TOKEN_OF_RUN, "text"} <= set(frame.columns) or not frame["text"].isna().any():
        return frame
    first = frame.groupby(_TOKEN_OF_RUN, sort=False)["text"].transform("first")
    return frame.assign(text=frame["text"].fillna(first))


def _read(source: Source, columns: tuple[Column, ...]) -> pd.DataFrame:
    frame = pd.read_parquet(source.own())
    if source.shared:
        frame = filled(frame)
    keys = [frame[name] for name in ("experiment", "run")] if source.shared else []
    return pd.concat([*keys, _typed(frame, columns)], axis=1)


def _typed(frame: pd.DataFrame, columns: tuple[Column, ...]) -> pd.DataFrame:
    absent = [c.name for c in columns if c.optional and c.name not in frame]
    whole = frame.assign(**dict.fromkeys(absent))
    return whole[[c.name for c in columns]].astype({c.name: c.dtype for c in columns})


# All results of some runs.

PathLike = str | os.PathLike
LONGEST = 2**20
"""Bytes of the longest config or record that a report carries."""


@dataclass(frozen=True, eq=False)
class Results:
    """Results of any number of runs as pandas frames.

    runs: one row per complete run. metrics: every row of their metrics.csv. The columns of both are
    documented in ``analysis.loading.columns`` (RUN_COLUMNS, METRIC_COLUMNS) and in analysis/README.md. A configuration
    key that differs between the runs and has no column there is one more column of runs, by its name:
    ``runs["optim.beta2"]``.
    problems: one sentence for each thing that was left out or seems wrong.
    unfinished: one row per folder without a complete run (experiment, run, status, step, reason, folder);
    status is failed, incomplete, broken or foreign. places: the folders that were loaded. exported: of runs that
    were read from an exported folder (experiment, run), that folder; their own may be gone or elsewhere.
    """

    runs: pd.DataFrame
    metrics: pd.DataFrame
    problems: list[str]
    unfinished: pd.DataFrame
    tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    places: tuple[Path, ...] = ()
    exported: dict[Key, Path] = field(default_factory=dict, repr=False)

    def bench(self, name: str) -> Path | None:
        """Find a table of job=bench in the loaded folders, or in published/ there or up to two folders above."""
        for place in (path.resolve() for path in self.places):
            around = (folder / "published" for folder in (place, *place.parents[:2]))
            for folder in (place, *around):
                if os.path.isfile(folder / name):
                    if not leads_out(folder / name, folder):
                        return folder / name
                    self._add_problem(f"{folder / name}: it is a link out of its folder and was not read")
        return None

    @cached_property
    def selection(self) -> pd.DataFrame:
        """The settings that job=compare tried before these runs (`analysis.loading.tables`); no row without any.

        A row that stands in several records, of runs and of what was published of them, is one. Records that cannot be
        read are named in `problems` from then on.
        """
        found = []
        for place in tables.folders(self.places):
            if os.path.lexists(place / tables.FILE):
                try:
                    found.append(tables.read_selection(place))
                except UNREADABLE as error:
                    self._add_problem(f"{place}: {tables.FILE} cannot be read ({error})")
        return pd.concat(found).drop_duplicates(ignore_index=True) if found else tables.none()

    @cached_property
    def of_text(self) -> Results:
        """The runs on text alone, with tables of their own."""
        return self.part(self.runs["task"].isna())

    @cached_property
    def of_tasks(self) -> Results:
        """The runs on synthetic tasks alone, with tables of their own."""
        return self.part(self.runs["task"].notna())

    def part(self, wanted: pd.Series) -> Results:
        """The runs where ``wanted`` is true, with tables of their own."""
        if wanted.all():
            return self
        runs = self.runs[wanted].reset_index(drop=True)
        known = pd.MultiIndex.from_frame(self.metrics[["experiment", "run"]]).isin(
            pd.MultiIndex.from_frame(runs[["experiment", "run"]])
        )
        metrics = self.metrics[known].reset_index(drop=True)
        return replace(self, runs=runs, metrics=metrics, tables={})

    def run_folders(self) -> list[Path | None]:
        """Return the folder of every run; None for exported runs, whose ``folder`` is only what the file claims."""
        found = self.runs[["experiment", "run", "folder"]].itertuples(index=False)
        return [None if (one.experiment, one.run) in self.exported else Path(one.folder) for one in found]

    def texts(self, file: str) -> list[str | None]:
        """Read the text of a file in every run's folder; None where there is none, or it may not be read.

        Those that are there and cannot be read are named in `problems` from then on.
        """
        found: list[str | None] = []
        for home, run in zip(self.run_folders(), self.runs.itertuples(), strict=True):
            text = None
            try:
                text = home and read_text(home, file, LONGEST, errors="replace")
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                self._add_problem(f"{run.experiment}/{run.run}: {file} cannot be read ({error})")
            found.append(text)
        return found

    def _add_problem(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of TABLES or SPLIT_TABLES over all runs that have it, read at the first call.

        Files that cannot be read are named in `problems` from then on. Raises ResultsError for another name.
        """
        if name not in self.tables:
            if name not in TABLES and name not in SPLIT_TABLES:
                raise unknown("table", name, (*TABLES, *SPLIT_TABLES))
            if name in SPLIT_TABLES:
                self.tables[name], unread = read_split_table(name, self.runs, self.exported)
            else:
                self.tables[name], unread = read_table(self.runs, name, self.exported)
            self.problems.extend(unread)
        return self.tables[name]

    def columns(self, name: str) -> pd.DataFrame:
        """Return type, unit and meaning by column (the index) of "runs", "metrics" or a table of probes.

        Those of a table of probes are the ones in its file. Raises ResultsError for another name.
        """
        known = {"runs": RUN_COLUMNS, "metrics": METRIC_COLUMNS}
        if name not in known and name not in TABLES:
            raise unknown("described table", name, (*known, *TABLES))
        columns = known[name] if name in known else table_columns(self.runs, name, self.exported)
        if name == "runs":
            meaning = "configuration key that differs between these runs"
            columns += tuple(
                Column(key, str(self.runs[key].dtype), "", "", meaning, optional=True)
                for key in option_names(self.runs)
            )
        shown = ["name", "dtype", "unit", "meaning"]
        return pd.DataFrame(columns, columns=list(Column._fields))[shown].set_index("name")

    def to_parquet(self, folder: PathLike, *, small: bool = False, probes: bool = True) -> list[Path]:
        """Write runs.parquet, metrics.parquet and, with ``probes``, the other tables that there are, each atomically.

        Returns their paths. ``load_results(folder)`` reads them back; tables of an earlier export are deleted. small:
        in as few bytes as it takes, which takes longer, and without types that pandas alone knows.
        """
        names = (*TABLES, *SPLIT_TABLES)
        tables = {f"{name}.parquet": self.table(name) for name in names if probes}
        frames = {name: frame for name, frame in tables.items() if not frame.empty}
        for name in {f"{name}.parquet" for name in names} - frames.keys():
            (Path(folder) / name).unlink(missing_ok=True)
        frames = {EXPORTED_RUNS: self.runs, EXPORTED_METRICS: self.metrics, **frames}
        if small:
            if "assignments.parquet" in frames:
                frames["assignments.parquet"] = thinned(frames["assignments.parquet"])
            return [write_small_table(frame, Path(folder) / name) for name, frame in frames.items()]
        return [
            write_atomically(Path(folder) / name, partial(frame.to_parquet, compression="zstd"))
            for name, frame in frames.items()
        ]


def load_results(path: PathLike | Iterable[PathLike]) -> Results:
    """Load one run folder, one experiment folder, the whole results folder, or a list of such paths.

    A folder that ``Results.to_parquet`` wrote counts as the runs in it; a run that is also there as a folder is
    taken from that. Failed, incomplete, broken and foreign folders are left out and reported in ``problems`` and
    ``unfinished``. Raises ResultsError if a path does not exist or if no run is complete.
    """
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(item) for item in path]
    rows, unfinished, problems, exported = [], [], [], {}
    for folder, kind in sorted(_folders(paths), key=lambda found: found[1] == EXPORT):
        outcome = read_folder(folder, kind)
        if isinstance(outcome, Unfinished):
            unfinished.append(outcome)
            problems.append(str(outcome))
            continue
        found, odd = outcome
        problems.extend(odd)
        if kind == EXPORT:
            new = _not_among(rows, found)
            exported |= dict.fromkeys(new, folder)
            found = list(new.values())
        rows.extend(found)
    if not rows:
        raise ResultsError(_nothing_complete(paths, problems))
    runs = _runs_frame(rows)
    metrics, unread = read_metrics(runs, exported)
    left_out = _unfinished_frame(unfinished)
    return Results(runs, metrics, problems + unread, left_out, places=tuple(paths), exported=exported)


def _not_among(rows: list[dict], found: list[dict]) -> dict[Key, dict]:
    """Exported runs that are not there already, by experiment and run."""
    known = {(row["experiment"], row["run"]) for row in rows}
    keyed = {(row["experiment"], row["run"]): row for row in found}
    return {key: row for key, row in keyed.items() if key not in known}


def _folders(paths: list[Path]) -> list[tuple[Path, str]]:
    found: dict[Path, tuple[Path, str]] = {}
    for path in paths:
        if not os.path.isdir(path):
            what = "is a file" if os.path.exists(path) else "does not exist"
            raise ResultsError(
                f"{path} {what}; give the folder of a run, of an experiment, or of all results"
            )
        for folder, kind in find_folders(path):
            real = folder.resolve()
            if real not in found or found[real][1] == LINK:
                found[real] = folder, kind
    return list(found.values())


def _nothing_complete(paths: list[Path], problems: list[str]) -> str:
    where = ", ".join(map(str, paths)) or "an empty list of folders"
    shown = "".join(f"\n  {problem}" for problem in problems[:10])
    more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
    return (
        f"no complete run in {where}; give the experiment's command (again): "
        f"it skips complete runs and continues the others{shown}{more}"
    )


def _runs_frame(rows: list[dict]) -> pd.DataFrame:
    names = [column.name for column in RUN_COLUMNS if column.name != "label"]
    frame = pd.DataFrame(rows, columns=names)
    frame = frame.astype({column.name: column.dtype for column in RUN_COLUMNS if column.name != "label"})
    frame["mfu"], frame["task"] = plausible_mfu(frame["mfu"]), task_names(frame)
    frame = _apart_by_weights(frame.join(_option_columns(rows, frame.index)))
    frame.insert(names.index("name") + 1, "label", labels(frame, "setting"))
    return frame.sort_values(["experiment", "label", "seed", "run"], ignore_index=True)


def _apart_by_weights(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs, with other settings where a seed has several first weights: those are not the seeds of one setting."""
    if (weights := "start.sha256") in frame:
        for key in ("setting", "sweep"):
            of_a_seed = frame.groupby([key, "seed"])[weights].transform("nunique")
            several = of_a_seed.groupby(frame[key]).transform("max") > 1
            frame.loc[several, key] += frame.loc[several, weights].fillna("").str[:12]
    return frame


def _option_columns(rows: list[dict], index: pd.Index) -> pd.DataFrame:
    """Return a column for every configuration key that differs between these rows: numbers, or else texts.

    A run without a key that has others of the same node was made before the key existed, and differs from those that
    have it.
    """
    options = [
        {k: v for k, v in row.items() if "." in k and isinstance(v, int | float | str)} for row in rows
    ]
    nodes = [{key.rpartition(".")[0] for key in run} for run in options]
    columns = {}
    for key in sorted(set().union(*options)):
        cells, node = [run.get(key) for run in options], key.rpartition(".")[0]
        values = {cell for cell, known in zip(cells, nodes, strict=True) if cell is not None or node in known}
        if len(values) > 1:
            numbers = not any(isinstance(value, str) for value in values)
            text = [cell if cell is None or isinstance(cell, str) else f"{cell:g}" for cell in cells]
            columns[key] = pd.Series(cells, index, "float64") if numbers else pd.Series(text, index, "str")
    return pd.DataFrame(columns, index=index)


def _unfinished_frame(unfinished: list[Unfinished]) -> pd.DataFrame:
    rows = [
        (*run_title(item.folder).split("/"), item.status, item.step, item.reason, readable(str(item.folder)))
        for item in unfinished
    ]
    frame = pd.DataFrame(rows, columns=["experiment", "run", "status", "step", "reason", "folder"])
    return frame.astype({"step": "Int64"})
