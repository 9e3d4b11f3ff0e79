"""The interface of a source of text, the table of all sources, and what the splits of one hold."""

from __future__ import annotations

import glob
import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from experiments.data.cache import cache_root, content_hash, load_fact, store_fact
from experiments.data.config import DataConfig
from experiments.data.tokenizers import has_long_words
from zoo.errors import UserError

SPLITS = ("train", "validation", "test")
EVALUATION_SHARE = 20
"""One document in EVALUATION_SHARE is for testing, and one for validation."""

PACKED = ".gz"

SOURCES: dict[str, Source] = {}

Contents = dict[str, dict]
_CONTENTS_VERSION = 2
_COUNT = range(2**63)
_SPLIT = {"digest": str, "bytes": _COUNT, "rows": _COUNT, "documents": _COUNT, "long_words": bool}
_CONTENTS = dict.fromkeys(SPLITS, _SPLIT)

# Timestamps have a granularity of milliseconds: a file younger than this may change without a new stamp.
_SETTLED_NS = 2_000_000_000


@dataclass(frozen=True)
class Document:
    """A text that is never split between training and evaluation.

    rows: row ends to count as words: rows of the data set (WikiText, blank ones too) or lines.
    """

    text: str
    rows: int

    @property
    def n_words(self) -> int:
        """Whitespace-separated words plus one for each row end, WikiText's convention."""
        return len(self.text.split()) + self.rows


def count_lines(text: str) -> int:
    """Lines of ``text``; a last line without its newline counts too."""
    return text.count("\n") + (bool(text) and not text.endswith("\n"))


class Source(ABC):
    """A named source of documents.

    rule: how documents go to splits; changing it changes every hash.
    at_hand: reading the documents needs no network and writes no cache, so that a check can do it.
    """

    rule: ClassVar[str]
    at_hand: ClassVar[bool] = False

    @abstractmethod
    def check(self, cfg: DataConfig) -> None:
        """Raise UserError for settings and missing files; quick, writes nothing, stays off the network."""

    def check_splits(self, cfg: DataConfig, splits: Sequence[str]) -> None:
        """Raise UserError as `check` does, where no other splits than these will be read."""
        self.check(cfg)

    @abstractmethod
    def stamp(self, cfg: DataConfig) -> dict[str, Any] | None:
        """The identity of the input files, without reading them: an equal stamp means equal text.

        None if a file is too new to tell; the text is then read again.
        """

    @abstractmethod
    def documents(self, cfg: DataConfig, split: str, cache: Path) -> Iterator[Document]:
        """The documents of ``split`` in their fixed order."""

    @abstractmethod
    def label(self, cfg: DataConfig, split: str, read: dict[str, Any] | None = None) -> str:
        """The name of a split as a table shows it; never a path of this machine.

        read: what `read_split` found; without it nothing is called by the name of a published text that may be another.
        """

    def labels(self, cfg: DataConfig, read: Contents | None = None) -> dict[str, str]:
        """The name of each split."""
        return {split: self.label(cfg, split, None if read is None else read[split]) for split in SPLITS}

    def origin(self, cfg: DataConfig) -> dict[str, str]:
        """Facts about where the text came from, for the summary of a run; no paths of this machine."""
        return {}

    def confirm(self, cfg: DataConfig, read: Contents) -> None:  # noqa: B027
        """Raise UserError where what was read is not what was asked for."""

    def told(self, cfg: DataConfig, read: Contents) -> str | None:
        """What a person should hear of the text that was read, in one line; None: nothing."""
        return None


def register_source(name: str) -> Callable[[type[Source]], type[Source]]:
    """Class decorator: make a source available as ``data.name=<name>``."""

    def register(cls: type[Source]) -> type[Source]:
        SOURCES[name] = cls()
        return cls

    return register


def fixed_part(pattern: str) -> Path:
    """The part of a glob before its first wild card; a folder whose own name has brackets in it is none."""
    fixed = Path()
    for part in Path(pattern).expanduser().parts:
        if glob.has_magic(part) and not (fixed / part).exists():
            break
        fixed = fixed / part
    return fixed


def expand_glob(pattern: str) -> list[Path]:
    """The paths that a glob (`**` included) matches, sorted."""
    fixed = fixed_part(pattern)
    wild = Path(pattern).expanduser().relative_to(fixed)
    return sorted(Path(name) for name in glob.glob(os.path.join(glob.escape(fixed), wild), recursive=True))


def kind_of(file: Path) -> str:
    """The end of a file's name in lower case, without .gz where it is packed."""
    name = Path(file.name.lower())
    if name.suffix == PACKED and (inner := Path(name.stem).suffix) != ".parquet":
        return inner
    return name.suffix


def file_state(file: Path) -> tuple[int, int, int]:
    """Size and times of a file: what is remembered of it holds as long as they do."""
    info = file.stat()
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns


def files_stamp(files: Iterable[Path], settled_ns: int = _SETTLED_NS) -> list[list[Any]] | None:
    """Path, size, times and inode of every file, or None if one changed less than ``settled_ns`` ago."""
    now, rows = time.time_ns(), []
    for file in files:
        info = os.stat(file)
        if now - max(info.st_mtime_ns, info.st_ctime_ns) < settled_ns:
            return None
        rows.append([str(file.absolute()), info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino])
    return rows


def refuse(cfg: DataConfig, *keys: str) -> None:
    """Raise UserError if one of ``keys`` is set though this source does not use it."""
    for key in keys:
        if getattr(cfg, key) is not None:
            raise UserError(
                f"data.{key}={getattr(cfg, key)} does not apply to data.name={cfg.name}; leave it out"
                + (", or choose data.name=text for your own files" if key == "path" else "")
                + (", or choose data=hf" if key == "dataset" else "")
            )


def contents(cfg: DataConfig, keep: bool = True) -> Contents:
    """For each split what `read_split` finds.

    The result of an earlier call is taken from the cache as long as the files have not changed. keep: write this one
    there. Raises UserError for text that cannot be read or is not what was asked for, and for a text too small for
    ``cfg.seq_len``.
    """
    source = SOURCES[cfg.name]
    stamp = source.stamp(cfg)
    file = cache_root(cfg) / "contents" / f"{content_hash([_CONTENTS_VERSION, cfg.name, stamp])}.json"
    found = load_fact(file, _CONTENTS) if stamp is not None else None
    if found is None:
        found = {split: read_split(cfg, split) for split in SPLITS}
        source.confirm(cfg, found)
        if stamp is not None and keep:
            store_fact(file, found)
    # No tokenizer here makes more tokens than bytes, and one separator a document.
    check_sizes(cfg, {split: part["bytes"] + part["documents"] for split, part in found.items()}, "bytes")
    return found


def check_sizes(cfg: DataConfig, sizes: dict[str, int], unit: str) -> None:
    """Raise UserError unless training fills a window and the evaluation splits have something to score."""
    needed = cfg.seq_len + 1
    if sizes["train"] < needed or min(sizes.values()) < 2:
        raise UserError(
            f"the text is too small: training has {sizes['train']} {unit}, validation {sizes['validation']}, "
            f"test {sizes['test']} (document separators counted); data.seq_len={cfg.seq_len} needs at least "
            f"{needed} tokens of training text and some text in each split: give more text or a smaller "
            "data.seq_len"
        )


def read_split(cfg: DataConfig, split: str) -> dict[str, Any]:
    """Read a split: {"digest": SHA-256 of its documents in order, "bytes", "rows", "documents", "long_words"}.

    long_words: whether tokenizers get words of it in parts (`pieces`).
    """
    digest, size, rows, documents, long_words = hashlib.sha256(), 0, 0, 0, False
    for document in SOURCES[cfg.name].documents(cfg, split, cache_root(cfg)):
        encoded = document.text.encode()
        digest.update(f"{len(encoded)} {document.rows}\n".encode() + encoded)
        size += len(encoded)
        rows += document.rows
        documents += 1
        long_words = long_words or has_long_words(document.text)
    counts = {"bytes": size, "rows": rows, "documents": documents}
    return {"digest": digest.hexdigest(), **counts, "long_words": long_words}
