"""The parquet tables of a run's folder probes/; schema.py says what each column means."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.probing.schema import described
from zoo.files import write_atomic

FOLDER = "probes"
_INT, _FLOAT, _STR = pa.int64(), pa.float64(), pa.string()
_PLACE = [("layer", _INT), ("part", _STR), ("block", _STR), ("head", _INT)]
_BUCKET = [("axis", _STR), ("start", _FLOAT), ("end", _FLOAT)]

SCHEMAS = {
    name: described(name, pa.schema(columns))
    for name, columns in {
        "measures": [
            ("step", _INT),
            *_PLACE,
            *_BUCKET,
            ("measure", _STR),
            ("value", _FLOAT),
            ("count", _INT),
        ],
        "maps": [
            ("layer", _INT),
            ("block", _STR),
            ("head", _INT),
            ("kind", _STR),
            ("query", _INT),
            ("key", _INT),
            ("weight", _FLOAT),
        ],
        "sentence": [("position", _INT), ("token", _INT), ("text", _STR)],
        "routes": [*_PLACE, ("position", _INT), ("rank", _INT), ("choice", _INT), ("probability", _FLOAT)],
        "assignments": [*_PLACE, ("choice", _INT), ("token", _INT), ("text", _STR), ("count", _INT)],
        "samples": [
            ("prompt", _STR),
            ("text", _STR),
            ("temperature", _FLOAT),
            ("sample_seed", _INT),
            ("tokens_per_second", _FLOAT),
        ],
    }.items()
}
TRAINING = "training"  # `measures`, taken while a run trained
SCHEMAS[TRAINING] = SCHEMAS["measures"]


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
    return list(zip(*(table[column].to_pylist() for column in SCHEMAS[name].names), strict=True))
