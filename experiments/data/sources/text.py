"""Your own text: a file, a folder or a glob of UTF-8 text and of tables with a column of texts.

A byte order mark at the start is dropped and line ends become a single newline; nothing else is changed. A document is
a file, or a row of a table.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from experiments.data.config import DataConfig
from experiments.data.sources.base import (
    EVALUATION_SHARE,
    SPLITS,
    Contents,
    Document,
    Source,
    count_lines,
    files_stamp,
    fixed_part,
    refuse,
    register_source,
)
from experiments.data.sources.text_files import (
    Found,
    decode_text,
    find,
    is_table,
    listed,
    read_text,
    state,
    texts,
)
from zoo.errors import UserError

__all__ = ["Text", "corpus_name", "cut_text", "decode_text", "read_text", "splits_of_digests", "whole_files"]

_HELD_OUT = ("test", "validation")
_LARGEST_SHARE = 0.1
_SHORTEST_CUT = 50


@register_source("text")
class Text(Source):
    """Splits that the names of files tell (`text_files.by_split`) are taken as they are.

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
        """Times and sizes of the files and the column of tables; None while a file is new."""
        found = find(cfg)
        files = files_stamp(found.files)
        return None if files is None else {"rule": self.rule, "files": files, "column": found.column}

    def documents(self, cfg: DataConfig, split: str, cache: Path) -> Iterator[Document]:
        """The documents of a split, or its part of each, in the order of the paths."""
        found = find(cfg)
        if found.splits and "train" not in found.splits:
            raise UserError(
                f"data.path={cfg.path} has text for validation and test, and none for training; give it, too, or score "
                "a trained model on this: job=evaluate run=RUN data=text"
            )
        for text in _texts_of(found, split):
            yield Document(text, count_lines(text))

    def label(self, cfg: DataConfig, split: str, read: dict | None = None) -> str:
        """The name of what was given, with the split."""
        return f"{corpus_name(cfg.path)} ({split} part)"

    def told(self, cfg: DataConfig, read: Contents) -> str:
        """The files, where each split comes from, and what is left out."""
        found, missing = find(cfg), _missing(find(cfg))
        splits = [
            f"{split} from {listed([file.name for file in files])}" for split, files in found.splits.items()
        ]
        if missing:
            how = "of whole documents" if _stay_whole(found) else "of the end of each document"
            splits.append(f"{' and '.join(missing)} {how}" + " for training" * bool(found.splits))
        documents = ", ".join(f"{part['documents']:,} {split}" for split, part in read.items())
        return f"{told_files(cfg, found)}; {', '.join(splits)}; documents: {documents}"


def told_files(cfg: DataConfig, found: Found | None = None) -> str:
    """How many files are read, and what of them and beside them is left out."""
    found = found or find(cfg)
    tables = [file for file in found.files if is_table(file)]
    left_out = [f"{name} ({n:,})" if n > 1 else name for name, n in sorted(found.left_out.items())]
    if blank := sum(not size for file in tables for _, size in _measured(file, found.column)):
        left_out.append(f"rows without text ({blank:,})")
    if _missing(found):
        measured = (_measured(file, found.column) for file in _pool(found))
        copies = Counter(digest for units in measured for digest, size in units if size)
        if again := copies.total() - len(copies):
            left_out.append(f"documents equal to others ({again:,})")
    return (
        f"data.path={cfg.path}: {len(found.files):,} file{'s' * (len(found.files) > 1)}"
        + f", column '{found.column}'" * bool(tables)
        + f"; left out: {listed(left_out)}" * bool(left_out)
    )


def whole_files(cfg: DataConfig) -> Iterator[Document]:
    """Every document that ``data.path`` names, not split; documents of equal content once."""
    found, seen = find(cfg), set()
    for file in found.files:
        for text in texts(file, found.column):
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


def _missing(found: Found) -> list[str]:
    """The splits that no file's name tells; they are taken from the training text."""
    return [split for split in _HELD_OUT if split not in found.splits]


def _texts_of(found: Found, split: str) -> Iterator[str]:
    missing = _missing(found)
    if found.splits and (split != "train" or not missing) and split not in missing:
        for file in found.splits[split]:
            yield from filter(None, texts(file, found.column))
        return
    # With one split to take, it gets the last part, and training the one before that, too.
    home = {"train": "train", "validation": "train", "test": missing[0]}
    if len(missing) == len(_HELD_OUT):
        home |= {name: name for name in _HELD_OUT}
    homes = splits_of_digests(_sizes(found)) if _stay_whole(found) else {}
    seen: set[str] = set()
    for file in _pool(found):
        measured = _measured(file, found.column)
        if homes and not any(size and home[homes[digest]] == split for digest, size in measured):
            continue
        for (digest, _), text in zip(measured, texts(file, found.column), strict=True):
            if not text or digest in seen:
                continue
            seen.add(digest)
            if homes:
                part = text if home[homes[digest]] == split else ""
            else:
                part = "".join(_part(text, name) for name in SPLITS if home[name] == split)
            if part:
                yield part


def _pool(found: Found) -> list[Path]:
    return found.splits.get("train", found.files)


def _sizes(found: Found) -> dict[str, int]:
    """Content hash -> bytes of each document that splits are taken from."""
    return {digest: n for file in _pool(found) for digest, n in _measured(file, found.column) if n}


def _stay_whole(found: Found) -> bool:
    sizes = _sizes(found).values()
    return len(sizes) >= EVALUATION_SHARE and max(sizes) <= _LARGEST_SHARE * sum(sizes)


def _measured(file: Path, column: str) -> list[tuple[str, int]]:
    """SHA-256 of each text of ``file``, and its length in bytes."""
    return _measure(file, column, *state(file))


@cache
def _measure(file: Path, column: str, *_state: int) -> list[tuple[str, int]]:
    encoded = (text.encode() for text in texts(file, column))
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
        found = text.rfind(separator, target - len(text) // 50, target)
        if found >= 0:
            return found + len(separator)
    return target
