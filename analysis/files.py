"""What pages and tables of this package share: files written whole or not at all, errors, formats of numbers."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import gzip
import math
import os
import re
import shlex
import tempfile
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

# Words of command lines, as a page or a message shows them.


def word(key: str, text: str) -> str:
    """KEY=TEXT, quoted for a shell and for Hydra: the key gets exactly this text, commas, quotes and ${ included."""
    from hydra.core.override_parser.types import Quote, QuotedString  # only where advice is given

    if _read_plainly(f"{key}={text}") == text and "${" not in text:
        return shlex.quote(f"{key}={text}")
    # OmegaConf takes ${ for an interpolation, unless an odd number of backslashes stands before it.
    escaped = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    return shlex.quote(f"{key}={QuotedString(escaped, Quote.double).with_quotes()}")


def _read_plainly(override: str) -> object:
    """Return the value that Hydra reads from an override; None where it reads none."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(override).value()
    except HydraException:
        return None


# Errors.


class ResultsError(ValueError):
    """Raised for a results folder that cannot be used; the message says what is wrong and what to do."""


class NoData(Exception):
    """Raised where results lack the data that a figure draws; the message gives the reason and replaces the figure."""


def unknown(kind: str, name: str, known: Iterable[str]) -> ResultsError:
    """Return `no figure 'curves'; did you mean 'task_curves'? There are ...`, as an error to raise."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    meant = f"did you mean '{close[0]}'? There" if close else "there"
    return ResultsError(f"no {kind} '{name}'; {meant} are {', '.join(names)}")


# Atomic writing: a file is complete or not there.

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


# Formats of numbers and texts; a missing value is always "–".

MISSING = "–"


def number(value: Any) -> str:
    """Format a loss or similar with four decimals below 10, fewer above."""
    if pd.isna(value):
        return MISSING
    value = float(value)
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 1e7:
        return f"{value:.3g}"
    return f"{value:,.{4 if size < 10 else 2 if size < 1000 else 0}f}"


def difference_decimals(difference: float, half_width: float) -> int:
    """Return the decimals that show a difference and its interval: two digits of the half width.

    More, where rounded numbers would say something else about zero than the numbers themselves.
    """
    size, decimals = abs(difference), 4
    if half_width > 0:
        decimals = max(1, min(6, 1 - math.floor(math.log10(half_width))))
    outside = size > half_width
    while (
        decimals < 12
        and (round(size, decimals) - round(half_width, decimals) > 0.5 * 10**-decimals) != outside
    ):
        decimals += 1
    return decimals


def signed(value: float, decimals: int) -> str:
    """Format a difference with its sign: "−0.031", "+0.004"."""
    return f"{value:+.{decimals}f}".replace("-", "−")


def whole(value: Any) -> str:
    """Format a count with thousands separators."""
    return MISSING if pd.isna(value) else f"{round(float(value)):,}"


def engineering(value: Any) -> str:
    """Format a number with three significant digits and k, M, G or T."""
    if pd.isna(value):
        return MISSING
    value = float(value)
    for factor, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:
            return f"{_three_digits(value / factor)}{suffix}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    return f"{value:.{0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2}f}"


def memory(value: Any) -> str:
    """Format bytes in MiB or GiB."""
    if pd.isna(value):
        return MISSING
    mebibytes = float(value) / 2**20
    return f"{_three_digits(mebibytes)} MiB" if mebibytes < 1024 else f"{_three_digits(mebibytes / 1024)} GiB"


def percent(value: Any) -> str:
    """Format a share between 0 and 1 as per cent."""
    return MISSING if pd.isna(value) else f"{100 * float(value):.1f} %"


def deviation(value: float) -> str:
    """Format a relative difference as signed per cent; -100% only where nothing is left."""
    decimals = 1
    while value > -1 and float(f"{100 * value:.{decimals}f}") <= -100:
        decimals += 1
    return f"{100 * value:+.{decimals}f}%"


def duration(seconds: Any) -> str:
    """Format seconds as "12.3 s", "4 min 05 s" or "3 h 07 min"."""
    if pd.isna(seconds):
        return MISSING
    seconds = float(seconds)
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def listing(items: Any, limit: int = 8) -> str:
    """Join items as "a, b and c"; past the limit the number of those left out."""
    items = [str(item) for item in items]
    if len(items) > limit:
        items = [*items[:limit], f"{len(items) - limit} more"]
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else "none"


_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


def pictured(text: str) -> str:
    """Return the text with pictures for control characters (␛ for ESC), which a page and a terminal would obey."""
    return text.translate(_PICTURES)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def pictured_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table that was read with pictures for control characters in its texts (`pictured`)."""
    return _with_texts(frame, _CONTROL, pictured)


def _with_texts(frame: pd.DataFrame, odd: re.Pattern, change: Callable[[str], str]) -> pd.DataFrame:
    """Return a table with `change` made in the columns that have a text in which there is something `odd`."""
    changed = {}
    for name, kind in frame.dtypes.items():
        texts = pd.api.types.is_object_dtype(kind) or isinstance(kind, pd.StringDtype)
        if texts and any(isinstance(cell, str) and odd.search(cell) for cell in set(map(str, frame[name]))):
            changed[name] = frame[name].map(lambda cell: change(cell) if isinstance(cell, str) else cell)
    return frame.assign(**changed)


def write_csv(frame: pd.DataFrame, path: Path, *, small: bool = False) -> Path:
    """Write a table for spreadsheets, atomically (`csv_text`); small: as NAME.csv.gz, a tenth of the bytes."""
    before = path.with_name(f"{path.name}{'' if small else '.gz'}")
    before.unlink(missing_ok=True)  # of an earlier report
    if not small:
        return write_text(path, csv_text(frame))
    packed = gzip.compress(csv_text(frame).encode(), mtime=0)
    return write_atomically(
        path.with_name(f"{path.name}.gz"), lambda temporary: temporary.write_bytes(packed)
    )


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV in which no text is a formula: before one that begins as they do stands an apostrophe."""
    return _with_texts(frame, _FORMULA, lambda text: _FORMULA.sub(r"'\g<0>", text)).to_csv(index=False)


_FORMULA = re.compile(r"\A[=+@\t\r-](?![\d.]+(?:e[+-]?\d+)?\Z)", re.IGNORECASE)
"""What spreadsheets compute, which a number is not."""


INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Categories of Unicode without a glyph of their own: control, format, half a character, private, unassigned."""


def visible(text: object) -> str:
    """Return the text on one line without control characters and characters of no width."""
    shown = (c for c in str(text) if c.isspace() or unicodedata.category(c) not in INVISIBLE)
    return " ".join("".join(shown).split())
