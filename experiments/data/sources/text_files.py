"""Files of your own text: which of a folder or a glob are read, the splits that their names tell, their texts."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from experiments.data.config import DataConfig
from experiments.data.sources.base import SPLITS, expand_glob, fixed_part
from experiments.data.sources.tables import (
    TABLES,
    NoColumn,
    NoTable,
    check_table,
    kind_of,
    read_bytes,
    read_table,
)
from zoo.errors import UserError

_COLUMN = "text"  # of tables, unless data.text_column names another
_TEXTS = (".txt", ".text", ".md", ".raw", ".tokens")
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev"), "validation"),
    "test": "test",
}
_NUMBERS = re.compile(r"\d+|of|v\d+")  # as in train-00000-of-00002, train-v1.1
_OTHER_FORMATS = {
    b"\x1f\x8b": "gzip: let its name end in .gz",
    b"PAR1": "parquet: let its name end in .parquet",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"BZh": "packed by bzip2: unpack it",
    b"\xfd7zXZ": "packed by xz: unpack it",
    b"(\xb5/\xfd": "packed by zstd: unpack it",
    b"%PDF": "PDF: take the text out of it",
}


@dataclass(frozen=True)
class Found:
    """What ``data.path`` names.

    files: those that are read, sorted. splits: the same by split, where their names tell, else empty.
    column: of tables. left_out: names or kinds of files that are not read, with their number.
    """

    files: list[Path]
    splits: dict[str, list[Path]]
    column: str
    left_out: Counter


def find(cfg: DataConfig) -> Found:
    """The files of ``data.path``. Raises UserError if there are none, or if a table has no column of texts."""
    if not cfg.path:
        raise UserError(
            "data.name=text needs data.path: a UTF-8 text file, a table (parquet, CSV, TSV, JSON lines), a folder of "
            "these, or a glob"
        )
    path, column = Path(cfg.path).expanduser(), cfg.text_column or _COLUMN
    left_out: Counter = Counter()
    if path.is_dir():
        files = _of_folder(path, column, left_out)
    else:
        files = [path] if path.is_file() else [file for file in expand_glob(cfg.path) if file.is_file()]
        _check_tables(files, column)
    if not files:
        raise UserError(f"data.path={cfg.path}: no such file or folder, and as a glob it matches nothing")
    if cfg.text_column is not None and not any(is_table(file) for file in files):
        raise UserError(
            f"data.text_column={column} is of tables, and there is none in data.path={cfg.path}; leave it out"
        )
    splits = {} if path.is_file() else by_split(files, path if path.is_dir() else fixed_part(cfg.path))
    if splits:
        named = {file for part in splits.values() for file in part}
        left_out.update(f"{file.name} (of no split)" for file in files if file not in named)
        files = [file for file in files if file in named]
    return Found(files, splits, column, left_out)


def is_table(file: Path) -> bool:
    """Return whether a file is read by its rows."""
    return kind_of(file) in TABLES


def _of_folder(folder: Path, column: str, left_out: Counter) -> list[Path]:
    """The files in a folder, however deep, that are read, sorted. Adds the others to ``left_out``."""
    files, without = [], []
    for file in sorted(Path(place, name) for place, _, names in os.walk(folder) for name in names):
        kind = kind_of(file)
        if any(part.startswith(".") for part in file.relative_to(folder).parts):
            left_out["hidden files"] += 1
        elif kind in _TEXTS:
            files.append(file)
        elif kind in TABLES:
            (without if _lacks(file, column) else files).append(file)
        else:
            left_out[f"*{file.suffix.lower()}" if file.suffix else "files without a suffix"] += 1
    if not files:
        _check_tables(without, column)
        raise UserError(
            f"data.path={folder}: no text in this folder (*{', *'.join((*_TEXTS, *TABLES))}; also packed, *.gz); for "
            "other names give a glob"
        )
    left_out.update(f"{file.name} (no column '{column}')" for file in without)
    return files


def _check_tables(files: list[Path], column: str) -> None:
    try:
        for file in filter(is_table, files):
            _check_table(file, column, *state(file))
    except NoColumn as error:
        raise UserError(f"{error}; name its column of texts with data.text_column=...") from error


def _lacks(file: Path, column: str) -> bool:
    try:
        _check_table(file, column, *state(file))
    except (NoColumn, NoTable):
        return True
    return False


@cache
def _check_table(file: Path, column: str, *_state: int) -> None:
    check_table(file, column)


def state(file: Path) -> tuple[int, int, int]:
    """Size and times of a file: what is remembered of it holds as long as they do."""
    info = file.stat()
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns


def by_split(files: list[Path], root: Path) -> dict[str, list[Path]]:
    """Split -> its files, where their names tell; empty where they do not.

    A name tells by its end (`wiki.train.raw`, `corpus_dev.txt`, `train-00000-of-00002.parquet`), a file in a folder
    `train` by the folder; where that tells of every file, by its beginning, too (`train_clean.txt`). One split alone
    tells nothing, but beside files called just `test.txt` or `valid.txt` the rest is training text.
    """
    folders = {file: _folder_tells(file, root) for file in files}
    ends = {file: folders[file] or _SPLIT_NAMES.get(_words(file)[-1]) for file in files}
    if "train" in ends.values() and len({*ends.values()} - {None}) > 1:
        return _grouped(ends)
    begins = {file: ends[file] or _SPLIT_NAMES.get(_words(file)[0]) for file in files}
    if None not in begins.values() and "train" in begins.values() and len({*begins.values()}) > 1:
        return _grouped(begins)
    if None not in ends.values() and len({*ends.values()}) > 1:
        return _grouped(ends)
    just = {file: split if folders[file] or len(_words(file)) == 1 else None for file, split in ends.items()}
    if "train" not in ends.values() and len({*just.values()}) > 1:
        return _grouped({file: split or "train" for file, split in just.items()})
    return {}


def _folder_tells(file: Path, root: Path) -> str | None:
    folders = file.relative_to(root).parts[:-1] if file.is_relative_to(root) else ()
    return next((split for name in folders if (split := _SPLIT_NAMES.get(name.lower()))), None)


def _words(file: Path) -> list[str]:
    """The words of a file's name without its suffixes and the numbers at its end; at least one."""
    name, kind = file.name.lower().removesuffix(".gz"), kind_of(file)
    words = re.split(r"[._\-\s]+", name if kind[1:] in _SPLIT_NAMES else name.removesuffix(kind))
    while len(words) > 1 and _NUMBERS.fullmatch(words[-1]):
        words.pop()
    return words


def _grouped(splits: dict[Path, str | None]) -> dict[str, list[Path]]:
    found = {name: [file for file, split in splits.items() if split == name] for name in SPLITS}
    return {name: files for name, files in found.items() if files}


def texts(file: Path, column: str) -> Iterator[str]:
    """The texts of a file: the whole of it, or the rows of a table, "" for one without.

    Raises UserError for an empty file, and for what is no text.
    """
    if not is_table(file):
        yield read_text(file)
        return
    for number, value in enumerate(read_table(file, column), 1):
        if value is None or not value.strip():
            yield ""
            continue
        try:
            yield decode_text(value.encode(), f"{file}: row {number}", "leave the row out")
        except UnicodeEncodeError as error:
            raise UserError(f"{file}: row {number} holds half of a character; leave the row out") from error


def read_text(file: Path) -> str:
    """The text of ``file``. Raises UserError if it is empty or, with the offset, if it is not UTF-8."""
    raw = read_bytes(file)
    if not raw.strip(b"\xef\xbb\xbf \t\r\n"):
        raise UserError(f"{file} is empty; give a file with text, or a glob that leaves it out")
    for start, what in _OTHER_FORMATS.items():
        if raw.startswith(start):
            raise UserError(f"{file} is {what}, or leave it out with a glob")
    return decode_text(raw, str(file), "leave it out with a glob")


def decode_text(raw: bytes, place: str, otherwise: str) -> str:
    """The text of UTF-8 bytes, without a byte order mark, a single newline at every line end.

    place: where the bytes come from; otherwise: what a person can do besides converting them. Raises UserError with
    the offset for bytes that are no UTF-8, and for NUL.
    """
    nul = raw.find(b"\0")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if nul < 0 or error.start < nul:
            raise UserError(
                f"{place} is not UTF-8 text: byte {error.start} is 0x{raw[error.start]:02x}; convert it "
                f"(iconv -f ENCODING -t UTF-8), or {otherwise}"
            ) from error
    if nul >= 0:
        raise UserError(f"{place} is binary, not text: byte {nul} is NUL; {otherwise}, or convert it")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def listed(names: list[str], most: int = 6) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)
