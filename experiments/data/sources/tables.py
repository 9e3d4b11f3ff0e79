"""One column of a table of texts, row by row: parquet, CSV, TSV, JSON lines, a JSON list; all but parquet also gzipped.

A row without a value (null, an absent key, an empty field) is None. Other columns are not read, whatever they hold.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from experiments.data.sources.base import PACKED, file_state, kind_of
from zoo.errors import UserError

_JSON = (".jsonl", ".ndjson", ".json")
_SEPARATORS = {".csv": ",;\t", ".tsv": "\t"}
TABLES = (".parquet", *_SEPARATORS, *_JSON)
_SHOWN = 12  # names of columns in a message


class NoColumn(UserError):
    """A table has no such column."""


class NoTable(UserError):
    """A file of JSON holds something else than a table."""


def unpack(file: Path) -> bytes:
    """The bytes in a gzip file. Raises UserError where it is none or damaged."""
    with _readable(file):
        return gzip.decompress(file.read_bytes())


def check_table(file: Path, column: str) -> None:
    """Raise UserError as `read_table` does, up to the first value of ``column``; of parquet for its schema alone."""
    _check(file, column, *file_state(file))


@cache
def _check(file: Path, column: str, *_state: int) -> None:
    if kind_of(file) in (*_JSON, *_SEPARATORS):
        next((value for value in read_table(file, column) if value is not None), None)
    else:
        _strings(file, column)


def read_table(file: Path, column: str) -> Iterator[str | None]:
    """The values of ``column`` in order; a file of an unknown kind is taken for parquet. Streams, a few MB at a time.

    Raises UserError for a damaged file and for a value that is no text: NoColumn where there is no such column, NoTable
    for other JSON.
    """
    kind = kind_of(file)
    if kind in _SEPARATORS:
        return _csv_rows(file, column, _SEPARATORS[kind])
    return _json_rows(file, column) if kind in _JSON else _parquet_rows(file, column)


def _parquet_rows(file: Path, column: str) -> Iterator[str | None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    binary = _strings(file, column)
    try:
        for batch in pq.ParquetFile(file).iter_batches(columns=[column], batch_size=16384):
            values = batch.column(0).to_pylist()
            yield from (value and value.decode() for value in values) if binary else values
    except UnicodeDecodeError as error:
        bad = error.object[error.start]
        raise UserError(
            f"{file}: column '{column}' is not UTF-8 text: it has the byte 0x{bad:02x}; write it again from text"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file} is damaged: {_first_line(error)}") from error


def _strings(file: Path, column: str) -> bool:
    """Check a column of a parquet file by its footer; return whether its strings are stored as bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as parquet: {_first_line(error)}") from error
    if schema.names.count(column) != 1:
        raise _no_column(file, column, schema.names)
    kind = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if kind in (pa.string(), pa.large_string(), pa.string_view(), pa.null()):
        return False
    if kind in (pa.binary(), pa.large_binary(), pa.binary_view()):  # writers that do not know strings
        return True
    raise UserError(f"{file}: column '{column}' holds {kind}, not strings; name another one that does")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _csv_rows(file: Path, column: str, separators: str) -> Iterator[str | None]:
    csv.field_size_limit(sys.maxsize)  # of a whole document, not of 128 KB
    with _opened(file) as lines:
        first = lines.readline()
        headers = {
            one: [name.strip() for name in next(csv.reader([first], delimiter=one), [])] for one in separators
        }
        separator = next((one for one, names in headers.items() if names.count(column) == 1), separators[0])
        names = headers[separator]
        if names.count(column) != 1:
            raise _no_column(file, column, names)
        rows = csv.reader(lines, delimiter=separator, strict=True)
        place = names.index(column)
        try:
            for row in rows:
                if row and len(row) != len(names):
                    raise UserError(
                        f"{file}: line {rows.line_num + 1} has {len(row)} fields and the first line {len(names)}; "
                        "correct it, or quote its text"
                    )
                if row:
                    yield row[place] or None
        except csv.Error as error:
            raise UserError(f"{file}: line {rows.line_num + 1}: {error}; correct it") from error


def _json_rows(file: Path, column: str) -> Iterator[str | None]:
    names: dict[str, None] = {}
    for where, record in _json_records(file):
        if not isinstance(record, dict):
            raise _no_table(file, where, f'{where} is not of the form {{"{column}": "some text"}}')
        names.update(dict.fromkeys(record))
        value = record.get(column)
        if isinstance(value, str):
            yield value
        elif value is None or value != value:  # null, or not a number
            yield None
        else:
            raise UserError(
                f"{where}: '{column}' is {json.dumps(value)[:40]}, not a string; name another column"
            )
    if column not in names:
        raise _no_column(file, column, list(names))


def _json_records(file: Path) -> Iterator[tuple[str, Any]]:
    """Every entry of a list, or what stands on every line, with its place."""
    with _opened(file) as lines:
        start, before = "", -1
        while not start.strip() and (start := lines.readline()):
            before += 1
        where = f"{file}: line {before + 1}"
        try:
            if start.lstrip().startswith("["):
                entries = json.loads(start + lines.read())
                yield from ((f"{file}: entry {i}", record) for i, record in enumerate(entries, 1))
                return
            for number, line in enumerate(chain([start], lines), before + 1):
                where = f"{file}: line {number}"
                if line.strip():
                    yield where, json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise _no_table(file, where, f"{where} is not JSON ({str(error)[:60]})") from error


def _no_table(file: Path, where: str, what: str) -> UserError:
    first = where.endswith((": line 1", ": entry 1")) and kind_of(file) == ".json"
    return (NoTable if first else UserError)(
        f"{what}; a table must have an object on every line, or be a list of objects"
    )


def _no_column(file: Path, column: str, names: list[str]) -> NoColumn:
    shown = ", ".join(name[:40] for name in names[:_SHOWN]) + ", ..." * (len(names) > _SHOWN)
    return NoColumn(f"{file} has no column '{column}' (it has {shown or 'none'})")


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    with (
        _readable(file),
        gzip.open(file) if file.suffix.lower() == PACKED else file.open("rb") as raw,
        io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as lines,
    ):
        yield lines


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not UTF-8 text: it has the byte 0x{error.object[error.start]:02x}; convert it "
            "(iconv -f ENCODING -t UTF-8)"
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{file} is not a complete gzip file ({error}); compress it again") from error
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
