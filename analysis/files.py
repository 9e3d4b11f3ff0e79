"""Atomic writing of files: a file is complete or not there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.errors import ResultsError

_PARTIAL = ".partial"
_ENCODINGS = ("PLAIN", "BYTE_STREAM_SPLIT")  # beside a dictionary
_SMALLEST = {"compression": "zstd", "compression_level": 22, "write_statistics": False, "store_schema": False}


def write_atomically(path: Path, write: Callable[[Path], object]) -> Path:
    """Call ``write(temporary path in the same folder)``, then rename to ``path``; a failure leaves ``path`` unchanged.

    The temporary name keeps the suffix, because pandas and matplotlib choose a format by it. It is locked as long as
    its writer lives, so that `remove_partials` can recognise files whose writer was killed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=_PARTIAL + path.suffix)
    temporary = Path(name)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text atomically."""
    return write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_small_table(frame: pd.DataFrame, path: Path) -> Path:
    """Write a table as Parquet in as few bytes as it takes, atomically: for files that are committed.

    Every column has the encoding that compresses best: measured numbers split by bytes often take half of what they
    take in a dictionary. Statistics and the schemas of Arrow and pandas, most of a file of few rows, are left out:
    who reads it gives the columns their types.
    """
    table = pa.Table.from_pandas(frame, preserve_index=False)
    best = {name: _encoding(table.select([name])) for name in table.column_names}
    options = {
        "use_dictionary": [name for name, encoding in best.items() if encoding is None],
        "column_encoding": {name: encoding for name, encoding in best.items() if encoding is not None},
    }
    return write_atomically(path, lambda temporary: pq.write_table(table, temporary, **_SMALLEST, **options))


def _encoding(column: pa.Table) -> str | None:
    """Return the encoding in which a column takes least room, None for a dictionary."""
    (name,), (kind,) = column.column_names, column.schema.types
    split = pa.types.is_floating(kind) or pa.types.is_integer(kind)
    sizes = {None: _size(column, use_dictionary=True)}
    for encoding in _ENCODINGS[: 1 + split]:
        sizes[encoding] = _size(column, use_dictionary=False, column_encoding={name: encoding})
    return min(sizes, key=lambda encoding: sizes[encoding])


def _size(column: pa.Table, **options) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(column, sink, **_SMALLEST, **options)
    return sink.tell()


def remove_partials(folder: Path) -> None:
    """Remove temporary files that killed processes left in a folder; files being written stay."""
    for path in folder.glob(f".*{_PARTIAL}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or (path.is_file() and not _held(path)):
                path.unlink()


def _held(path: Path) -> bool:
    """Return whether a living process has the file locked."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def refuse_link(folder: Path) -> None:
    """Raise ResultsError if the folder to write into is a symbolic link, which may lead anywhere."""
    if folder.is_symlink():
        raise ResultsError(
            f"{folder} is a link to {os.path.realpath(folder)}, and nothing is written through links; remove it"
        )
