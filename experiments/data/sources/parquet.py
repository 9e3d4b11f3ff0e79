"""Rows of text in local parquet files, as the public WikiText repository lays them out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.data.sources.base import expand_glob
from zoo.errors import UserError

_COLUMN = "text"


def check_parquet(file: Path) -> None:
    """Raise UserError unless ``file`` is parquet with a string column `text`. Reads the footer only."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{file} cannot be read as parquet: {str(error).splitlines()[0]}") from error
    if _COLUMN not in schema.names:
        raise UserError(
            f"{file} has no column '{_COLUMN}' (it has {', '.join(schema.names)}); WikiText's layout has"
        )
    kind = schema.field(_COLUMN).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UserError(f"{file}: column '{_COLUMN}' holds {kind}, not strings")


def read_rows(file: Path) -> Iterator[str]:
    """The rows of column `text` in order; a missing value is a blank row. Streams, a few MB at a time.

    Raises UserError for a damaged file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(file).iter_batches(columns=[_COLUMN], batch_size=16384):
            for row in batch.column(0).to_pylist():
                yield row or ""
    except pa.ArrowInvalid as error:
        raise UserError(f"{file} is damaged: {str(error).splitlines()[0]}") from error


def find_parquet(place: str, option: str) -> list[Path]:
    """Parquet files that a file, a folder or a glob names, sorted. Raises UserError if there are none."""
    path = Path(place).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(path.glob("*.parquet"))
    else:
        files = sorted(file for file in expand_glob(place) if file.is_file())
    if not files:
        raise UserError(
            f"data.{option}={place}: no parquet file there; give a file, a folder of *.parquet or a glob"
        )
    return files
