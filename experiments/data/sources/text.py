"""Your own text: a file, a folder or a glob of UTF-8 text and of tables with a column of texts.

A byte order mark at the start is dropped and line ends become a single newline; nothing else is changed. A document is
a file, or a row of a table.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from experiments.data.config import DataConfig
from experiments.data.sources.base import (
    EVALUATION_SHARE,
    PACKED,
    SPLITS,
    Contents,
    Document,
    Source,
    count_lines,
    file_state,
    files_stamp,
    fixed_part,
    kind_of,
    refuse,
    register_source,
)
from experiments.data.sources.folders import find_files
from experiments.data.sources.tables import TABLES, NoColumn, check_table, read_table, unpack
from zoo.errors import UserError

_COLUMN = "text"  # of tables, unless data.text_column names another
_HELD_OUT = ("test", "validation")
_LARGEST_SHARE = 0.1
_SHORTEST_CUT = 50
_OTHER_FORMATS = {
    b"\x1f\x8b": "gzip: rename it to *.gz",
    b"PAR1": "Parquet: rename it to *.parquet",
    b"PK\x03\x04": "a zip archive: extract it",
    b"BZh": "compressed with bzip2: decompress it",
    b"\xfd7zXZ": "compressed with xz: decompress it",
    b"(\xb5/\xfd": "compressed with zstd: decompress it",
    b"%PDF": "a PDF: extract its text",
}


@register_source("text")
class Text(Source):
    """Splits that the names of files tell (`folders.by_split`) are taken as they are.

    Those that no name tells, or all, are taken from the training text: whole documents if there are at least 20 and
    none holds over 10 % of the bytes, else parts of each. Whole documents: by SHA-256 of their content
    (`splits_of_digests`). Parts: the last 5 % of every document of 50 characters or more is test, the 5 % before
    validation, at the end of a paragraph where there is one (`cut_text`). Documents of equal content count once.
    """

    rule = "text 1: whole files by sha256 of the content (>= 20, none > 10 %), else each 90/5/5 at paragraphs"
    at_hand = True

    def check(self, cfg: DataConfig) -> None:
        """Raise UserError for settings of other sources, and where there are no files or no column of texts."""
        refuse(cfg, "train_path", "revision")
        find(cfg)

    def stamp(self, cfg: DataConfig) -> dict[str, Any] | None:
        """Times and sizes of the files, what their names tell, the column of tables; None while a file is new."""
        selection = find(cfg)
        files = files_stamp(selection.files)
        splits = {split: [str(file.absolute()) for file in part] for split, part in selection.splits.items()}
        return files and {"rule": self.rule, "files": files, "splits": splits, "column": selection.column}

    def documents(self, cfg: DataConfig, split: str, cache: Path) -> Iterator[Document]:
        """The documents of a split, or its part of each, in the order of the paths."""
        selection = find(cfg)
        if selection.splits and "train" not in selection.splits:
            left_out = f" (left out: {_listed(sorted(selection.left_out))})" if selection.left_out else ""
            raise UserError(
                f"data.path={cfg.path} has only {' and '.join(selection.splits)} files, by their names, and no "
                f"training text{left_out}; add some, give a single file to train on, or score a trained "
                "model on these: job=evaluate run=RUN data=text"
            )
        for text in _texts_of(selection, split):
            yield Document(text, count_lines(text))

    def label(self, cfg: DataConfig, split: str, read: dict | None = None) -> str:
        """The name of what was given, with the split."""
        return f"{corpus_name(cfg.path)} ({split} part)"

    def told(self, cfg: DataConfig, read: Contents) -> str:
        """The files, where each split comes from, and what is left out."""
        selection = find(cfg)
        splits = [
            f"{split} from {_listed([file.name for file in files])}"
            for split, files in selection.splits.items()
        ]
        if selection.missing:
            how = "whole documents" if _stay_whole(selection) else "the end of each document"
            splits.append(
                f"{' and '.join(selection.missing)} from {how}" + " for training" * bool(selection.splits)
            )
        documents = ", ".join(f"{part['documents']:,} {split}" for split, part in read.items())
        return f"{told_files(cfg, selection)}; {', '.join(splits)}; documents: {documents}"


@dataclass(frozen=True)
class Found:
    """What ``data.path`` names.

    files: those that are read, sorted. splits: the same by split, where their names tell, else empty.
    column: the one of tables. left_out: names or kinds of other files, with their number.
    """

    files: list[Path]
    splits: dict[str, list[Path]]
    column: str
    left_out: Counter

    @property
    def tables(self) -> list[Path]:
        """The files that are read by their rows."""
        return [file for file in self.files if kind_of(file) in TABLES]

    @property
    def missing(self) -> list[str]:
        """The splits that no file's name tells; they are taken from the training text."""
        return [split for split in _HELD_OUT if split not in self.splits]

    @property
    def training(self) -> list[Path]:
        """The files of training text, from which other splits may have to be taken."""
        return self.splits.get("train", self.files)


def find(cfg: DataConfig) -> Found:
    """The files of ``data.path``. Raises UserError if there are none, or if a table has no column of texts."""
    if not cfg.path:
        raise UserError(
            "data.name=text needs data.path: a UTF-8 text file, a table (parquet, CSV, TSV, JSON lines), a folder of "
            "these, or a glob"
        )
    path, column = Path(cfg.path).expanduser(), cfg.text_column or _COLUMN
    try:
        files, splits, left_out = ([path], {}, Counter()) if path.is_file() else find_files(cfg.path, column)
        selection = Found(files, splits, column, left_out)
        for file in selection.tables:
            check_table(file, column)
    except NoColumn as error:
        raise UserError(f"{error}; name its column of texts with data.text_column=...") from error
    if cfg.text_column is not None and not selection.tables:
        raise UserError(
            f"data.text_column={column} works for tables (Parquet, CSV, JSON Lines), but data.path={cfg.path} has "
            "none; leave it out"
        )
    return selection


def told_files(cfg: DataConfig, selection: Found | None = None) -> str:
    """How many files are read, and what of them and beside them is left out."""
    selection = selection or find(cfg)
    left_out = [f"{name} ({n:,})" if n > 1 else name for name, n in sorted(selection.left_out.items())]
    if blank := sum(not size for file in selection.tables for _, size in _measured(file, selection.column)):
        left_out.append(f"rows without text ({blank:,})")
    if selection.missing:
        measured = (_measured(file, selection.column) for file in selection.training)
        copies = Counter(digest for units in measured for digest, size in units if size)
        if again := copies.total() - len(copies):
            left_out.append(f"documents equal to others ({again:,})")
    objects = [file.name for file in selection.files if kind_of(file) not in TABLES and _holds_objects(file)]
    return (
        f"data.path={cfg.path}: {len(selection.files):,} file{'s' * (len(selection.files) > 1)}"
        + f", column '{selection.column}'" * bool(selection.tables)
        + f"; left out: {_listed(left_out)}" * bool(left_out)
        + f"; lines of {_listed(objects)} are JSON objects, read as they stand: named *.jsonl they are a table"
        * bool(objects)
    )


def _holds_objects(file: Path) -> bool:
    """Return whether the first line of a text file is a JSON object."""
    with open(file, "rb") as opened:
        line = opened.readline(1 << 20)
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def whole_files(cfg: DataConfig) -> Iterator[Document]:
    """Every document that ``data.path`` names, not split; documents of equal content once."""
    selection, seen = find(cfg), set()
    for file in selection.files:
        for text in _texts(file, selection.column):
            if text and text not in seen:
                yield Document(text, count_lines(text))
            seen.add(text)


def corpus_name(place: str) -> str:
    """The name of a file or folder; of a glob, the pattern and the folder it starts in: /a/texts/*.md -> texts/*.md."""
    path = Path(place).expanduser().absolute()
    if path.exists():
        return path.name
    fixed = len(fixed_part(str(path)).parts)
    return "/".join(path.parts[max(1, fixed - 1) :])


def _texts(file: Path, column: str) -> Iterator[str]:
    """The texts of a file: the whole of it, or the rows of a table, "" for one without.

    Raises UserError for an empty file, and for what is no text.
    """
    if kind_of(file) not in TABLES:
        yield read_text(file)
        return
    for number, value in enumerate(read_table(file, column), 1):
        if value is None or not value.strip():
            yield ""
            continue
        try:
            yield decode_text(value.encode(), f"{file}: row {number}", "leave the row out")
        except UnicodeEncodeError as error:
            raise UserError(
                f"{file}: row {number} has half of a character (an unpaired surrogate); leave the row out"
            ) from error


def read_text(file: Path) -> str:
    """The text of ``file``. Raises UserError if it is empty or, with the offset, if it is not UTF-8."""
    try:
        raw = unpack(file) if file.suffix.lower() == PACKED else file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
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


def _texts_of(selection: Found, split: str) -> Iterator[str]:
    missing = selection.missing
    if selection.splits and (split != "train" or not missing) and split not in missing:
        for file in selection.splits[split]:
            yield from filter(None, _texts(file, selection.column))
        return
    # With one split to take, it gets the last part, and training the one before that, too.
    home = {"train": "train", "validation": "train", "test": missing[0]}
    if len(missing) == len(_HELD_OUT):
        home |= {name: name for name in _HELD_OUT}
    homes = splits_of_digests(_sizes(selection)) if _stay_whole(selection) else {}
    seen: set[str] = set()
    for file in selection.training:
        measured = _measured(file, selection.column)
        if homes and not any(size and home[homes[digest]] == split for digest, size in measured):
            continue
        for (digest, _), text in zip(measured, _texts(file, selection.column), strict=True):
            if not text or digest in seen:
                continue
            seen.add(digest)
            if homes:
                part = text if home[homes[digest]] == split else ""
            else:
                part = "".join(_part(text, name) for name in SPLITS if home[name] == split)
            if part:
                yield part


def _sizes(selection: Found) -> dict[str, int]:
    """Content hash -> bytes of each document that splits are taken from."""
    return {digest: n for file in selection.training for digest, n in _measured(file, selection.column) if n}


def _stay_whole(selection: Found) -> bool:
    sizes = _sizes(selection).values()
    return len(sizes) >= EVALUATION_SHARE and max(sizes) <= _LARGEST_SHARE * sum(sizes)


def _measured(file: Path, column: str) -> list[tuple[str, int]]:
    """SHA-256 of each text of ``file``, and its length in bytes."""
    return _measure(file, column, *file_state(file))


@cache
def _measure(file: Path, column: str, *_state: int) -> list[tuple[str, int]]:
    encoded = (text.encode() for text in _texts(file, column))
    return [(hashlib.sha256(text).hexdigest(), len(text)) for text in encoded]


def _part(text: str, split: str) -> str:
    if len(text) < _SHORTEST_CUT:
        return text if split == "train" else ""
    return cut_text(text)[split]


def splits_of_digests(digests: Iterable[str]) -> dict[str, str]:
    """Split of each content hash: of n, the lowest ⌊n/20⌋ are test, as many again validation, the rest
    training.

    Unlike a modulus this never leaves a split empty (n ≥ 20). Equal contents share one hash and so one split.
    """
    ordered = sorted(set(digests))
    share = len(ordered) // EVALUATION_SHARE
    names = ["test"] * share + ["validation"] * share
    names += ["train"] * (len(ordered) - len(names))
    return dict(zip(ordered, names, strict=True))


def cut_text(text: str) -> dict[str, str]:
    """Cut one text into its first 90 % (training), the next 5 % (validation) and the last 5 % (test).

    A cut moves to the nearest end of a paragraph before it, else of a line, else of a word, if there is one
    within 2 % of the text; otherwise it falls between two characters. From 50 characters on no part is empty.
    """
    first, second = (_border(text, len(text) * part // EVALUATION_SHARE) for part in (18, 19))
    return {"train": text[:first], "validation": text[first:second], "test": text[second:]}


def _border(text: str, target: int) -> int:
    for separator in ("\n\n", "\n", " "):
        place = text.rfind(separator, target - len(text) // 50, target)
        if place >= 0:
            return place + len(separator)
    return target


def _listed(names: list[str], most: int = 6) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)
