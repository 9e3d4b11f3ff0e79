"""Texts in a folder or a glob: which files are read, and the splits that their names tell."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from experiments.data.sources.base import SPLITS, expand_glob, fixed_part, kind_of
from experiments.data.sources.tables import TABLES, NoColumn, NoTable, check_table
from zoo.errors import UserError

_TEXTS = (".txt", ".text", ".md", ".raw", ".tokens")
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "trainset"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev", "validset", "valset", "devset"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation", "testset", "evalset"), "test"),
}
_NUMBERS = re.compile(r"\d+|of|v\d+")  # as in train-00000-of-00002, train-v1.1


def find_files(place: str, column: str) -> tuple[list[Path], dict[str, list[Path]], Counter]:
    """The files of a folder (however deep) or a glob that are read, sorted; by split, where their names tell; others.

    column: of a table, or it is not read. The others are left out: their names or kinds, with their number. Raises
    UserError where there is no file to read.
    """
    root, left_out = Path(place).expanduser(), Counter()
    if root.is_dir():
        files = _of_folder(root, column, left_out)
    else:
        root, files = fixed_part(place), [file for file in expand_glob(place) if file.is_file()]
    if not files:
        raise UserError(f"data.path={place}: no such file or folder, and as a glob it matches nothing")
    splits = by_split(files, root)
    if splits:
        named = {file for part in splits.values() for file in part}
        left_out.update(f"{file.name} (of no split)" for file in files if file not in named)
        files = [file for file in files if file in named]
    return files, splits, left_out


def _of_folder(folder: Path, column: str, left_out: Counter) -> list[Path]:
    files, without = [], {}
    for file in sorted(Path(place, name) for place, _, names in os.walk(folder) for name in names):
        kind = kind_of(file)
        if any(part.startswith(".") for part in file.relative_to(folder).parts):
            left_out["hidden files"] += 1
        elif kind in TABLES:
            try:
                check_table(file, column)
                files.append(file)
            except (NoColumn, NoTable) as error:
                without[file] = error
        elif kind in _TEXTS:
            files.append(file)
        else:
            left_out[f"*{file.suffix.lower()}" if file.suffix else "files without a suffix"] += 1
    if not files:
        raise next(iter(without.values()), None) or UserError(
            f"data.path={folder}: no text in this folder (*{', *'.join((*_TEXTS, *TABLES))}; also packed, *.gz); for "
            "other names give a glob"
        )
    left_out.update(f"{file.name} (no column '{column}')" for file in without)
    return files


def by_split(files: list[Path], root: Path) -> dict[str, list[Path]]:
    """Split -> its files, where their names tell; empty where they do not.

    A name tells by its end (`wiki.train.raw`, `corpus_dev.txt`, `train-00000-of-00002.parquet`), a file in a folder
    `train` by the folder; where that tells of every file, by its beginning, too (`train_clean.txt`). Training files
    alone tell nothing. Beside files called just `test.txt` or `valid.txt` the rest is training text; where there is no
    rest, there is none: the training file may be one that was left out.
    """
    folders = {file: _folder_tells(file, root) for file in files}
    ends = {file: folders[file] or _SPLIT_NAMES.get(_words(file)[-1]) for file in files}
    if "train" in ends.values() and len({*ends.values()} - {None}) > 1:
        return _grouped(ends)
    begins = {file: ends[file] or _SPLIT_NAMES.get(_words(file)[0]) for file in files}
    if None not in begins.values() and "train" in begins.values() and len({*begins.values()}) > 1:
        return _grouped(begins)
    if None not in ends.values() and {*ends.values()} != {"train"}:
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
