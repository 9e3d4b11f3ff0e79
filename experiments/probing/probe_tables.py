"""The parquet tables of a run's folder probes/, and what each of their columns means.

A column has the metadata `unit` and `meaning` (UTF-8), so that who reads the file needs no other source.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zoo.files import write_atomic

FOLDER = "probes"
TRAINING = "training"  # the table `measures`, taken while a run trained
_INT, _FLOAT, _STR = pa.int64(), pa.float64(), pa.string()

_LAYER = ("layer", _INT, "", "from 0; as many as there are layers: after the last; empty: whole model")
_PART = ("part", _STR, "", "mixer, channel, head, or empty for the whole model")
_BLOCK = ("block", _STR, "", "name of the mixer or channel mixer")
_HEAD = ("head", _INT, "", "from 0; empty where there are no heads")
_POSITION = ("position", _INT, "", "position in the sentence, from 0")
_TOKEN = ("token", _INT, "", "token id")
_TEXT = ("text", _STR, "", "the token as text")
_ROUTE = (
    *(_LAYER, _PART, _BLOCK, _HEAD, _POSITION),
    ("rank", _INT, "", "0: the first choice"),
    ("choice", _INT, "", "timeline, memory or expert"),
    ("probability", _FLOAT, "", "of this choice"),
)

# Table -> columns: name, type, unit, meaning.
_COLUMNS = {
    "measures": [
        ("step", _INT, "steps", "optimiser steps done"),
        *(_LAYER, _PART, _BLOCK, _HEAD),
        ("axis", _STR, "", "what start and end count: position, distance, expert, rank, step, quantile"),
        ("start", _FLOAT, "", "first value of the bucket"),
        ("end", _FLOAT, "", "one past the last; of a quantile: the quantile"),
        ("measure", _STR, "", "what the number is"),
        ("value", _FLOAT, "", "the number"),
        ("count", _INT, "", "observations it is the mean of"),
        ("split", _STR, "", "split of the text that was read"),
    ],
    "maps": [
        *(_LAYER, _BLOCK, _HEAD),
        ("kind", _STR, "", "attention, or selection (1: may be read)"),
        ("query", _INT, "", "position in the sentence"),
        ("key", _INT, "", "position in the sentence"),
        ("weight", _FLOAT, "", "what of the key goes into the query; pairs below 1e-3 are left out"),
    ],
    "sentence": [
        *(_POSITION, _TOKEN, _TEXT),
        ("given", _STR, "", "the text that probe.sentence gave; empty: held-out text"),
    ],
    "routes": [*_ROUTE],
    "alternatives": [*_ROUTE],  # choices not taken; their ranks go on from those of `routes`
    "assignments": [
        *(_LAYER, _PART, _BLOCK, _HEAD),
        ("choice", _INT, "", "first choice: timeline, memory or expert"),
        *(_TOKEN, _TEXT),
        ("count", _INT, "", "how often a token of this kind went there"),
        ("split", _STR, "", "split of the text that was read"),
    ],
    "samples": [
        ("prompt", _STR, "", "what the model was given"),
        ("text", _STR, "", "what it wrote after that"),
        ("temperature", _FLOAT, "", "0: the most likely token"),
        ("sample_seed", _INT, "", "seed of the sampling"),
        ("tokens_per_second", _FLOAT, "tokens/s", "decoding speed, prompt included"),
    ],
}

SCHEMAS = {
    table: pa.schema(
        pa.field(name, kind, metadata={"unit": unit, "meaning": meaning})
        for name, kind, unit, meaning in columns
    )
    for table, columns in _COLUMNS.items()
}
"""Table -> its columns, with their units and meanings as metadata."""
SCHEMAS[TRAINING] = SCHEMAS["measures"]

_LATER = ("split", "given")
"""Columns that tables written by earlier versions lack: empty there."""


def file(run: Path, name: str) -> Path:
    """The path of a table of a run."""
    return run / FOLDER / f"{name}.parquet"


def remove_partials(run: Path) -> None:
    """Remove half-written tables of a process that was killed."""
    for leftover in (run / FOLDER).glob(".*.partial"):
        leftover.unlink(missing_ok=True)


def write(run: Path, name: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Write rows, tuples in the order of the columns, by an atomic rename."""
    schema = SCHEMAS[name]
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    content = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), content, compression="zstd")
    file(run, name).parent.mkdir(exist_ok=True)
    write_atomic(file(run, name), content.getbuffer())


def read(run: Path, name: str) -> list[tuple[Any, ...]]:
    """The rows of a table. Raises OSError, ValueError or KeyError where it cannot be read."""
    table = pq.ParquetFile(file(run, name)).read()
    for column in _LATER:
        if column in SCHEMAS[name].names and column not in table.column_names:
            table = table.append_column(column, pa.nulls(len(table), _STR))
    return list(zip(*(table[column].to_pylist() for column in SCHEMAS[name].names), strict=True))
