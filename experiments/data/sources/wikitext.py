"""WikiText-103 and WikiText-2, raw (Merity, Xiong, Bradbury, Socher 2016, arXiv:1609.07843).

The text is Wikipedia's, by its authors, under CC BY-SA 3.0: pass the attribution and the licence on with any
text you pass on. Nothing of it is kept in this repository; it is read from the hub under its public name, or
from a local folder in the same layout. A training split given by `data.train_path` replaces the genuine one:
perplexities then compare with each other, never with published ones, and every label says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from experiments.data.config import DataConfig
from experiments.data.sources.base import SPLITS, Document, Source, files_stamp, register_source
from experiments.data.sources.parquet import check_parquet, find_parquet, read_rows
from zoo.errors import UserError

REPOSITORY = "Salesforce/wikitext"
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"


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
        if cfg.path is not None and cfg.revision is not None:
            raise UserError("data.revision is a commit on the hub; it has no meaning with a local data.path")
        for split in splits:
            for file in self._files(cfg, split) or ():
                check_parquet(file)

    def stamp(self, cfg: DataConfig) -> dict[str, Any] | None:
        """Times and sizes of local files, repository and commit of those on the hub."""
        splits = {split: self._files(cfg, split) for split in SPLITS}
        stamps = {
            split: self._hub(cfg) if found is None else files_stamp(found) for split, found in splits.items()
        }
        return None if None in stamps.values() else {"rule": self.rule, "splits": stamps}

    def documents(self, cfg: DataConfig, split: str, cache: Path) -> Iterator[Document]:
        """The articles of a split."""
        files = self._files(cfg, split)
        return articles([self._hub_rows(cfg, split)] if files is None else map(read_rows, files))

    def labels(self, cfg: DataConfig) -> dict[str, str]:
        """The data set and the split; for another training text the names of its files."""
        labels = {split: f"{self.folder} {split}" for split in SPLITS}
        if cfg.train_path is not None:
            stems = [re.sub(r"-\d+-of-\d+$", "", file.stem) for file in self._files(cfg, "train")]
            labels["train"] = " + ".join(dict.fromkeys(stems))
        return labels

    def label(self, cfg: DataConfig, split: str) -> str:
        """The data set and the split."""
        return self.labels(cfg)[split] if split == "train" else f"{self.folder} {split}"

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
