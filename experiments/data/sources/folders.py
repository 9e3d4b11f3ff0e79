"""Texts in a folder or a glob: which files are read, and the splits that their names tell."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from collections import Counter, defaultdict
from pathlib import Path

from experiments.data.sources.base import PACKED, SPLITS, expand_glob, fixed_part, kind_of
from experiments.data.sources.tables import TABLES, NoColumn, NoTable, check_table
from zoo.errors import UserError

_TEXTS = (".txt", ".text", ".md", ".raw", ".tokens")
# Called after what they do: no train.py is a training text that cannot be read.
_BESIDE = (".py", ".ipynb", ".sh", ".log", ".yaml", ".yml", ".toml", ".cfg", ".ini")
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "trainset", "trn"), "train"),
    **dict.fromkeys(("valid", "validation", "validate", "val", "validset", "valset"), "validation"),
    **dict.fromkeys(("dev", "devel", "development", "devset"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation", "testset", "evalset"), "test"),
    **dict.fromkeys(("tst", "devtest", "heldout", "holdout"), "test"),
}
_NUMBERS = re.compile(r"\d+|of|v")  # as in train-00000-of-00002, train-v1.1
# Between words, of trainSet and train1 too.
_BORDERS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")


def find_files(place: str, column: str) -> tuple[list[Path], dict[str, list[Path]], Counter]:
    """The files of a folder (however deep) or a glob that are read, sorted; by split, where their names tell; others.

    column: of a table, or it is not read. The others are left out: their names or kinds, with their number. The names
    of these tell, too: the rest does not stand in for a training file that cannot be read.
    Raises UserError where there is no file to read.
    """
    root, left_out, unread = Path(place).expanduser(), Counter(), {}
    if root.is_dir():
        files = _of_folder(root, column, left_out, unread)
    else:
        root, files = fixed_part(place), [file for file in expand_glob(place) if file.is_file()]
    if not files:
        raise UserError(f"data.path={place}: no such file or folder, and as a glob it matches nothing")
    by_name = by_split([*files, *unread], root)
    splits = {
        split: read
        for split, named in by_name.items()
        if (read := [file for file in named if file not in unread])
    }
    if by_name and not splits:
        first = min(file for named in by_name.values() for file in named)
        raise unread[first] or UserError(
            f"data.path={place}: cannot read the files of its splits, e.g. {first.name}; decompress them, convert them "
            f"to text (*{_TEXTS[0]}), or give a glob of the files to read"
        )
    if splits:
        named = {file for part in splits.values() for file in part}
        left_out.update(f"{file.name} (of no split)" for file in files if file not in named)
        files = [file for file in files if file in named]
    return files, splits, left_out


def _of_folder(
    folder: Path, column: str, left_out: Counter, unread: dict[Path, UserError | None]
) -> list[Path]:
    files = []
    for file in sorted(Path(place, name) for place, _, names in os.walk(folder) for name in names):
        kind = kind_of(file)
        if any(part.startswith(".") for part in file.relative_to(folder).parts):
            left_out["hidden files"] += 1
        elif kind in TABLES:
            try:
                check_table(file, column)
                files.append(file)
            except (NoColumn, NoTable) as error:
                unread[file] = error
                left_out[f"{file.name} (no column '{column}')"] += 1
        elif kind in _TEXTS or (_may_be_text(file) and _is_text(file)):
            files.append(file)
        elif {*Path(file.name.lower()).suffixes} & {*_TEXTS, *TABLES}:
            unread[file] = None
            left_out[file.name] += 1
        else:
            left_out[f"*{file.suffix.lower()}" if file.suffix else "files without a suffix"] += 1
            if kind not in _BESIDE and (_just(file, folder) or _at_end(_words(_stem(file)))):
                unread[file] = None
    if not files:
        raise next(filter(None, unread.values()), None) or UserError(
            f"data.path={folder}: no text in this folder (*{', *'.join((*_TEXTS, *TABLES))}; also "
            "compressed, *.gz); for "
            "other names give a glob"
        )
    return files


def _may_be_text(file: Path) -> bool:
    """Return whether the suffix is a split's name (`corpus.train`), or that of packing alone (`train.gz`)."""
    kind = kind_of(file)
    return kind[1:] in _SPLIT_NAMES or (not kind and file.suffix.lower() == PACKED)


def _is_text(file: Path) -> bool:
    """Return whether a file, unpacked, begins as UTF-8 text does."""
    try:
        with gzip.open(file) if file.suffix.lower() == PACKED else file.open("rb") as opened:
            head = opened.read(1 << 16)
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return False
    return b"\0" not in head


def by_split(files: list[Path], root: Path) -> dict[str, list[Path]]:
    """Split -> its files, where their names tell; empty where they do not.

    A name tells by its end (`wiki.train.raw`, `corpus_dev.txt`, `train-00000-of-00002.parquet`, `train1.txt`), a file
    in a folder `train` by the folder. A word elsewhere in a name or in a folder's tells where one of these tells of
    training text, where every file has one (`train_clean.txt`), and where names are alike but for it. Training files
    alone tell nothing. Beside files called just `test.txt` or `valid.txt` the rest is training text; where there is no
    rest, there is none: the training file may be one that was left out.
    """
    just = {file: _just(file, root) for file in files}
    ends = {file: just[file] or _at_end(_words(_stem(file))) for file in files}
    within = {file: _within(file, root) for file in files}
    tells = {file: ends[file] or (within[file][0] if within[file] else None) for file in files}
    named = {*tells.values()} - {None}
    alike = defaultdict(set)
    for names in filter(None, within.values()):
        alike[names[1]].add(names[0])
    sure = "train" in ends.values() or any("train" in names and len(names) > 1 for names in alike.values())
    if len(named) > 1 and (None not in tells.values() or ("train" in named and sure)):
        return _grouped(tells)
    if None not in ends.values() and named != {"train"}:
        return _grouped(ends)
    if "train" not in ends.values() and any(just.values()) and None in tells.values():
        return _grouped({file: split or "train" for file, split in tells.items()})
    return {}


def _parts(file: Path, root: Path) -> list[str]:
    """The names of the folders below root, and the file's."""
    return [*(file.relative_to(root).parts[:-1] if file.is_relative_to(root) else ()), _stem(file)]


def _stem(file: Path) -> str:
    """A file's name without its suffixes, of a kind of file and of packing; `corpus.train` has none."""
    name = file.name
    while (suffix := Path(name).suffix) and suffix[1:].lower() not in _SPLIT_NAMES:
        if name != file.name and suffix.lower() not in (kind_of(file), *_TEXTS, *TABLES):
            break
        name = name.removesuffix(suffix)
    return name


def _words(name: str) -> list[str]:
    """The words of a name in lower case, without the numbers at its end."""
    words = [word.lower() for word in _BORDERS.split(name) if word]
    while len(words) > 1 and _NUMBERS.fullmatch(words[-1]):
        words.pop()
    return words


def _just(file: Path, root: Path) -> str | None:
    """The split that is all of the name of a folder (the first), or of the file."""
    words = ("".join(_words(part)) for part in _parts(file, root))
    return next((_SPLIT_NAMES[name] for name in words if name in _SPLIT_NAMES), None)


def _at_end(words: list[str]) -> str | None:
    return _SPLIT_NAMES.get("".join(words[-2:])) or _SPLIT_NAMES.get("".join(words[-1:]))


def _within(file: Path, root: Path) -> tuple[str, tuple] | None:
    """The split that the last such word of a name tells, and what else the name has; a folder's before the file's."""
    for part in _parts(file, root):
        words = _words(part)
        for end in range(len(words), 0, -1):
            if split := _at_end(words[:end]):
                length = 1 if words[end - 1] in _SPLIT_NAMES else 2
                return split, (*words[: end - length], None, *words[end:])
    return None


def _grouped(splits: dict[Path, str | None]) -> dict[str, list[Path]]:
    groups = {name: [file for file, split in splits.items() if split == name] for name in SPLITS}
    return {name: files for name, files in groups.items() if files}
