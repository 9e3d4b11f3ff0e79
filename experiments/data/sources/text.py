"""Your own text: a file, a folder or a glob of UTF-8 text.

A byte order mark at the start is dropped and line ends become a single newline; nothing else is changed.
Files of equal content count once.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from experiments.data.config import DataConfig
from experiments.data.sources.base import (
    EVALUATION_SHARE,
    SPLITS,
    Document,
    Source,
    count_lines,
    expand_glob,
    files_stamp,
    refuse,
    register_source,
)
from zoo.errors import UserError

_SUFFIXES = (".txt", ".md")
_LARGEST_SHARE = 0.1
_SHORTEST_CUT = 50


@register_source("text")
class Text(Source):
    """Split rule: whole files if there are at least 20 and none holds over 10 % of the bytes, else cut each.

    Whole files: by SHA-256 of their content (`splits_of_digests`). Cut: the last 5 % of every file of 50
    characters or more is test, the 5 % before validation, at the end of a paragraph where there is one
    (`cut_text`).
    """

    rule = "text 1: whole files by sha256 of the content (>= 20, none > 10 %), else each 90/5/5 at paragraphs"
    at_hand = True

    def check(self, cfg: DataConfig) -> None:
        """Raise UserError for settings of other sources, and where there are no files."""
        refuse(cfg, "train_path", "revision")
        find_text(cfg)

    def stamp(self, cfg: DataConfig) -> dict[str, Any] | None:
        """Times and sizes of the files; None while one of them is new."""
        files = files_stamp(find_text(cfg))
        return None if files is None else {"rule": self.rule, "files": files}

    def documents(self, cfg: DataConfig, split: str, cache: Path) -> Iterator[Document]:
        """The files of a split, or its part of every file, in the order of their paths."""
        sizes: dict[str, int] = {}
        first: dict[str, Path] = {}
        for file in find_text(cfg):
            digest, size = _measure(file, *_state(file))
            first.setdefault(digest, file)
            sizes[digest] = size
        whole = len(first) >= EVALUATION_SHARE and max(sizes.values()) <= _LARGEST_SHARE * sum(sizes.values())
        homes = splits_of_digests(list(first)) if whole else {}
        for digest, file in first.items():
            if whole and homes[digest] != split:
                continue
            text = read_text(file)
            if not whole:
                text = _part(text, split)
            if text:
                yield Document(text, count_lines(text))

    def labels(self, cfg: DataConfig) -> dict[str, str]:
        """The name of what was given, with the split."""
        return {split: f"{corpus_name(cfg.path)} ({split} part)" for split in SPLITS}


def find_text(cfg: DataConfig) -> list[Path]:
    """Files that ``data.path`` names, sorted by path. Raises UserError if there are none."""
    if not cfg.path:
        raise UserError(
            "data.name=text needs data.path: a UTF-8 text file, a folder of *.txt and *.md, or a glob"
        )
    path = Path(cfg.path).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        files = [
            Path(folder, name)
            for folder, _, names in os.walk(path)
            for name in names
            if name.endswith(_SUFFIXES) and not _hidden(Path(folder, name).relative_to(path))
        ]
        if not files:
            raise UserError(
                f"data.path={cfg.path}: no *.txt or *.md in this folder; for other names give a glob"
            )
        return sorted(files)
    files = [file for file in expand_glob(cfg.path) if file.is_file()]
    if not files:
        raise UserError(f"data.path={cfg.path}: no such file or folder, and as a glob it matches nothing")
    return files


def whole_files(cfg: DataConfig) -> Iterator[Document]:
    """Every file that ``data.path`` names as one document, not split; files of equal content once."""
    seen = set()
    for file in find_text(cfg):
        text = read_text(file)
        if text not in seen:
            yield Document(text, count_lines(text))
        seen.add(text)


def corpus_name(place: str) -> str:
    """The name of a file or folder; of a glob, the pattern and the folder it starts in: /a/texts/*.md -> texts/*.md."""
    path = Path(place).expanduser().absolute()
    if path.exists():
        return path.name
    fixed = next((i for i, part in enumerate(path.parts) if glob.has_magic(part)), len(path.parts))
    return "/".join(path.parts[max(1, fixed - 1) :])


def read_text(file: Path) -> str:
    """The text of ``file``. Raises UserError if it is empty or, with the offset, if it is not UTF-8."""
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from error
    if not raw.strip(b"\xef\xbb\xbf \t\r\n"):
        raise UserError(f"{file} is empty; give a file with text, or a glob that leaves it out")
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


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _state(file: Path) -> tuple[int, int, int]:
    info = file.stat()
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns


@cache
def _measure(file: Path, *_state: int) -> tuple[str, int]:
    """SHA-256 of the text of ``file``, and its length in bytes."""
    encoded = read_text(file).encode()
    return hashlib.sha256(encoded).hexdigest(), len(encoded)


def _part(text: str, split: str) -> str:
    if len(text) < _SHORTEST_CUT:
        return text if split == "train" else ""
    return cut_text(text)[split]


def splits_of_digests(digests: list[str]) -> dict[str, str]:
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
