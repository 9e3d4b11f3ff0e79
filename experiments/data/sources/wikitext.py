"""WikiText-103 and WikiText-2, raw (Merity, Xiong, Bradbury, Socher 2016, arXiv:1609.07843).

The text is Wikipedia's, by its authors, under CC BY-SA 3.0: pass the attribution and the licence on with any
text you pass on. Nothing of it is kept in this repository; it is read from the hub under its public name, or
from a local folder in the same layout. A training split given by `data.train_path` replaces the genuine one:
perplexities then compare with each other, never with published ones, and every label says so. Text is called by the
public name where it is what was published, by its rows, its bytes and, as far as known, its digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from experiments.data.config import DataConfig
from experiments.data.sources.base import (
    SPLITS,
    Contents,
    Document,
    Source,
    expand_glob,
    files_stamp,
    refuse,
    register_source,
)
from experiments.data.sources.tables import NoColumn, check_table, read_table
from zoo.errors import UserError

# Parquet files, laid out as in the public repository; `tables` reads them.


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


REPOSITORY = "Salesforce/wikitext"
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
_COLUMN = "text"
_COMMIT = re.compile(r"@([0-9a-f]{40})/")
_WHOLE_COMMIT = re.compile(r"[0-9a-f]{40}")
_BYTES_OFF = 1e-4
"""By how much bytes may differ from those published: the hub's card counts them with the bytes of its own tables."""

_EVALUATION = {"validation": (3_760, 1_144_248), "test": (4_358, 1_287_656)}
_PUBLISHED = {
    "wikitext-103-raw-v1": {"train": (1_801_350, 539_295_549), **_EVALUATION},
    "wikitext-2-raw-v1": {"train": (36_718, 10_914_845), **_EVALUATION},
}
"""Rows of each split and the bytes of its text, at REVISION."""

_DIGESTS = {
    ("wikitext-103-raw-v1", "validation"): "a27b07e47c5a0d1a5a25bc6211b079b48dd5bb9db7682d0ee6809c0db538d057",
    ("wikitext-103-raw-v1", "test"): "17aee9d870cd62461e37a197477f0d110b84bd45451b05b030227c9d3690edc5",
}


class WikiText(Source):
    """Splits as published. Documents are articles; rows are concatenated exactly as they are."""

    rule = "wikitext 1: published splits, a document an article"

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def check(self, cfg: DataConfig) -> None:
        """Raise UserError for settings that exclude each other, and for absent or unfit local files."""
        self.check_splits(cfg, SPLITS)

    def check_splits(self, cfg: DataConfig, splits: Sequence[str]) -> None:
        """Raise UserError as `check` does, of these splits alone: a folder to score on needs no training split."""
        refuse(cfg, "text_column")
        if cfg.path is not None and cfg.revision is not None:
            raise UserError(
                "data.revision is a commit on the hub, and data.path is local; leave out one of the two"
            )
        if cfg.revision is not None and not _WHOLE_COMMIT.fullmatch(cfg.revision):
            raise UserError(
                f"data.revision={cfg.revision} must be a full commit hash, 40 hexadecimal digits: branches and "
                "tags may move"
            )
        for split in splits:
            for file in self._files(cfg, split) or ():
                try:
                    check_table(file, _COLUMN)
                except NoColumn as error:
                    raise UserError(f"{error}; WikiText's layout has") from error

    def stamp(self, cfg: DataConfig) -> dict[str, Any] | None:
        """Times and sizes of local files, repository and commit of those on the hub."""
        splits = {split: self._files(cfg, split) for split in SPLITS}
        stamps = {
            split: self._hub(cfg) if files is None else files_stamp(files) for split, files in splits.items()
        }
        return None if None in stamps.values() else {"rule": self.rule, "splits": stamps}

    def documents(self, cfg: DataConfig, split: str, cache: Path) -> Iterator[Document]:
        """The articles of a split."""
        files = self._files(cfg, split)
        if files is None:
            return articles([self._hub_rows(cfg, split)])
        return articles((row or "" for row in read_table(file, _COLUMN)) for file in files)

    def label(self, cfg: DataConfig, split: str, read: dict | None = None) -> str:
        """The data set and the split where that is what was read; else the names of the files, or the revision."""
        files = self._files(cfg, split)
        if self._is_published(split, read) or (files is None and cfg.revision in (None, REVISION)):
            return f"{self.folder} {split}"
        if files is None:
            return f"{self.folder} {split} of revision {cfg.revision[:12]}"
        stems = " + ".join(dict.fromkeys(re.sub(r"-\d+-of-\d+$", "", file.stem) for file in files))
        local = split == "train" and cfg.train_path is not None and self.folder not in stems
        rows = "" if read is None else f"{read['rows']:,} row{'s' * (read['rows'] != 1)}, "
        return stems if local else f"{stems.replace(self.folder, 'text')} ({rows}not as published)"

    def confirm(self, cfg: DataConfig, read: Contents) -> None:
        """Raise UserError where the hub's pinned text was asked for, and another one came (from a cache, say)."""
        for split, part in read.items():
            if (
                cfg.revision in (None, REVISION)
                and self._files(cfg, split) is None
                and not self._is_published(split, part)
            ):
                raise self._another(cfg, f"{split} has {part['rows']:,} rows and {part['bytes']:,} bytes")

    def told(self, cfg: DataConfig, read: Contents) -> str | None:
        """The splits of data.path that are not what was published."""
        local = [s for s in SPLITS if (cfg.train_path is None or s != "train") and self._files(cfg, s)]
        names = [self.label(cfg, s, read[s]) for s in local if not self._is_published(s, read[s])]
        if not names:
            return None
        return (
            f"data.path={cfg.path} is not {self.folder} as published; its text is called {', '.join(names)}"
        )

    def origin(self, cfg: DataConfig) -> dict[str, str]:
        """The revision, of what the hub gave."""
        hub = any(self._files(cfg, split) is None for split in SPLITS)
        return {"revision": cfg.revision or REVISION} if hub else {}

    def _is_published(self, split: str, read: dict | None) -> bool:
        if read is None:
            return False
        rows, size = _PUBLISHED[self.folder][split]
        alike = read["rows"] == rows and abs(read["bytes"] - size) <= _BYTES_OFF * size
        return alike and read["digest"] == _DIGESTS.get((self.folder, split), read["digest"])

    def _another(self, cfg: DataConfig, what: str) -> UserError:
        repository, folder, revision = self._hub(cfg)
        return UserError(
            f"{repository} ({folder}) at revision {revision[:12]} was requested, but another text came: {what}; where "
            "the package datasets cannot reach the hub, it takes any copy in its cache: connect, remove that "
            "copy, or give a local folder with data.path=FOLDER"
        )

    def _files(self, cfg: DataConfig, split: str) -> list[Path] | None:
        """Local files of ``split``; None if it comes from the hub."""
        if split == "train" and cfg.train_path is not None:
            return find_parquet(cfg.train_path, "train_path")
        if cfg.path is None:
            return None
        root = Path(cfg.path).expanduser()
        if not root.is_dir():
            raise UserError(
                f"data.path={cfg.path} is not a folder; give the folder that holds {self.folder}'s "
                "{train,validation,test}-*.parquet, or leave data.path out to read the hub"
            )
        root = root / self.folder if (root / self.folder).is_dir() else root
        files = sorted(root.glob(f"{split}-*.parquet"))
        if not files:
            help_train = "; give another training text with data.train_path=FILE_OR_FOLDER" * (
                split == "train"
            )
            raise UserError(f"no {split}-*.parquet in {root}{help_train}")
        return files

    def _hub(self, cfg: DataConfig) -> list[str]:
        return [REPOSITORY, self.folder, cfg.revision or REVISION]

    def _hub_rows(self, cfg: DataConfig, split: str) -> Iterator[str]:
        repository, folder, revision = self._hub(cfg)
        local = (
            f"give a local folder of {split}-*.parquet with data.path=FOLDER, or use the embedded text with "
            "data.name=pydocs"
        )
        try:
            import datasets
        except ImportError as error:
            raise UserError(
                f"reading {repository} from the hub needs the package datasets; {local}"
            ) from error
        try:
            rows = datasets.load_dataset(repository, folder, revision=revision, split=split)
        except (OSError, ValueError) as error:
            words = str(error).splitlines()[0]
            raise UserError(f"cannot get {repository} ({folder}) from the hub: {words}; {local}") from error
        came = _COMMIT.search(
            " ".join(getattr(getattr(rows, "info", None), "download_checksums", None) or {})
        )
        if came and _WHOLE_COMMIT.fullmatch(revision) and came[1] != revision:
            raise self._another(cfg, f"it is of revision {came[1][:12]}")
        for batch in rows.iter(batch_size=16384):
            yield from batch["text"]


def articles(files: Iterable[Iterable[str]]) -> Iterator[Document]:
    """Join rows to articles. Rows before the first heading belong to the first article.

    An article starts at ` = Title = ` (but not ` = = `) between blank rows, or at the start of a file:
    legends of tables look the same (` = National record `) but never stand between blank rows.
    """
    text: list[str] = []
    started = False
    rows = 0
    for file in files:
        previous, row = "", None
        for following in chain(file, [None]):
            if row is not None:
                if not previous and not following and _is_title(row):
                    if started:
                        yield Document("".join(text), rows)
                        text, rows = [], 0
                    started = True
                text.append(row)
                rows += 1
                previous = row.strip()
            row = following
    if any(text):
        yield Document("".join(text), rows)


def _is_title(row: str) -> bool:
    return row.startswith(" = ") and row.endswith(" = \n") and not row.startswith(" = =")


@register_source("wikitext103")
class WikiText103(WikiText):
    """`wikitext-103-raw-v1`."""

    def __init__(self) -> None:
        super().__init__("wikitext-103-raw-v1")


@register_source("wikitext2")
class WikiText2(WikiText):
    """`wikitext-2-raw-v1`."""

    def __init__(self) -> None:
        super().__init__("wikitext-2-raw-v1")
