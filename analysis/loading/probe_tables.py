"""Tables that probes wrote into a run's folder probes/, as frames.

`results.table("measures")` gives one frame over all runs; each row names its run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow.parquet as pq

from analysis import units
from analysis.commands import word
from analysis.loading.columns import METRIC_KEYS, RUN_COLUMNS, Column
from analysis.loading.sources import Key, Source, gather, keyed, sources

if TYPE_CHECKING:
    from analysis.loading.results import Results

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
    found = _existing(runs, name, exported)
    frame, owners, problems = gather(runs, found, lambda source: _read(source, TABLES[name]))
    columns = (*_KEYS, *TABLES[name])
    whole = keyed(runs, owners, frame.reindex(columns=[c.name for c in TABLES[name]]))
    return whole.astype({c.name: c.dtype for c in columns}), problems


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
    others = f" (and {units.listing(homes[1:], limit=3)})" if homes[1:] else ""
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
