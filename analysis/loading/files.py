"""Files of runs: finding run folders, reading one of them, and reading exported folders, which hold many runs.

`Results.to_parquet` exports runs.parquet, metrics.parquet and the tables of probes, over all runs, into one folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import reprlib
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.files import pictured, pictured_cells
from analysis.loading.columns import METRIC_KEYS, RATES, RUN_COLUMNS, SETTING_COLUMNS

# Reading without following links out of a folder. Results may come from strangers, and a report shows texts of every
# run's folder. The folder that was asked for is trusted, even if it is a link; links below it may not lead out of it.

LARGEST = 2**28
"""Bytes above which a file is not accepted as a run's: the largest that a run writes have some millions."""


def leads_out(path: Path, root: Path) -> bool:
    """Return whether a path below a folder leads, through symbolic links, out of it."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def own_file(folder: Path, name: str, largest: int = LARGEST) -> Path:
    """Return the path of a regular file inside a folder.

    Raises OSError where it is not there, is no regular file (a pipe would never end), has more than ``largest``
    bytes, or lies elsewhere and is only linked to.
    """
    path = folder / name
    if leads_out(path, folder):
        raise OSError(f"it is a link out of its folder, to {os.path.realpath(path)}")
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise OSError("it is not a regular file")
    if info.st_size > largest:
        raise OSError(f"it has {info.st_size:,} bytes, more than any such file of a run")
    return path


def read_text(folder: Path, name: str, largest: int = LARGEST, errors: str = "strict") -> str:
    """Read the text of a file inside a folder. Raises OSError as `own_file` does, and UnicodeDecodeError."""
    return own_file(folder, name, largest).read_text(encoding="utf-8", errors=errors)


# Run folders.

SCHEMA = 1
RUN_FILES = ("summary.json", "config.yaml", "identity.json", "metrics.csv", "failure.json", "checkpoints")
NOT_RUNS = ("report", "published", "verdict")
NEEDED = ("experiment", "run", "name")
DEPTH = 2  # results / experiment / run
RUN, EXPORT, FOREIGN, CLOSED, LINK = "run", "export", "foreign", "closed", "link"
EXPORTED_RUNS = "runs.parquet"
WHOLE = range(-(2**63), 2**63)  # what a column of whole numbers holds


@dataclass(frozen=True)
class Unfinished:
    """A folder without a complete run; status: failed, incomplete, broken or foreign."""

    folder: Path
    status: str
    reason: str
    step: int | None = None

    def __str__(self) -> str:
        return f"{run_title(self.folder)}: {self.status}: {self.reason}"


def run_title(folder: Path) -> str:
    """Return "experiment/run" of a run folder, also of one given as "."; of a link its own name."""
    place = folder.parent.resolve() / folder.name if folder.is_symlink() else folder.resolve()
    return shown("/".join(place.parts[-2:]))


def shown(text: str) -> str:
    """Return a text of a file as it may be shown: readable, and with pictures for control characters."""
    return pictured(readable(text))


def readable(text: str) -> str:
    r"""Escape characters that no UTF-8 file can hold (lone surrogates) as \udc..."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class Broken(Exception):
    """Raised for a file of a run folder that cannot be read as its format says."""


def find_folders(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield (folder, kind) of every run or export in a run, an experiment or the whole results folder.

    Kinds: a run; an export, the folder of a runs.parquet; foreign, without any file of a run; closed, which may not
    be read; or a link out of ``path``. The last three are yielded so that messages can name them. Other folders next
    to exported tables (figures, say) are ignored.
    """
    yield from _find(path, DEPTH, path)


def _find(path: Path, depth: int, root: Path) -> Iterator[tuple[Path, str]]:
    if leads_out(path, root):
        yield path, LINK
        return
    if not os.access(path, os.R_OK | os.X_OK):
        yield path, CLOSED
        return
    if _is_run(path):
        yield path, RUN
        return
    export = os.path.isfile(path / EXPORTED_RUNS)
    if export:
        yield path, EXPORT
    children = _children(path) if depth else []
    if not children and not export:
        yield path, FOREIGN
    for child in children:
        yield from (
            (x, kind) for x, kind in _find(child, depth - 1, root) if not (export and kind == FOREIGN)
        )


def _children(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir() and not _ignored(child))
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    # os.path: a folder that may not be entered holds no run; Path.exists raises there.
    return any(os.path.exists(path / name) for name in RUN_FILES)


def _ignored(path: Path) -> bool:
    return path.name.startswith((".", "_")) or path.name in NOT_RUNS


def read_run(folder: Path) -> tuple[dict[str, Any], list[str]] | Unfinished:
    """Read summary.json into one flat row and the problems met; an `Unfinished` where there is no row."""
    if not (folder / "summary.json").exists():
        return _unfinished(folder)
    try:
        summary = _read_object(folder / "summary.json")
        return _row(folder, summary)
    except Broken as error:
        return Unfinished(folder, "broken", shown(str(error)))
    except RecursionError:
        return Unfinished(folder, "broken", "summary.json is nested too deep")


def _unfinished(folder: Path) -> Unfinished:
    if not (folder / "failure.json").exists():
        step = _last_step(folder)
        reached = "before its first record" if step is None else f"after step {step}"
        return Unfinished(
            folder,
            "incomplete",
            f"stopped or still running, {reached}; the same command resumes it",
            step,
        )
    try:
        failure = _read_object(folder / "failure.json")
        step, reason = failure.get("step"), _failure_text(failure)
    except Broken as error:
        return Unfinished(folder, "failed", f"and {error}")
    except RecursionError:
        return Unfinished(folder, "failed", "and failure.json is nested too deep")
    return Unfinished(folder, "failed", reason, step if isinstance(step, int) and step in WHOLE else None)


def _failure_text(failure: dict[str, Any]) -> str:
    step, module = failure.get("step"), failure.get("module")
    where = ("" if step is None else f" at step {step}") + ("" if not module else f" in {module}")
    return shown(f"{failure.get('kind', 'error')}{where}: {failure.get('message', 'no message')}")


def _last_step(folder: Path) -> int | None:
    try:
        header, *rows = read_text(folder, "metrics.csv").splitlines()
        step = int(rows[-1].split(",")[header.split(",").index("step")])
        return step if step in WHOLE else None
    except (OSError, ValueError, IndexError):
        return None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path.parent, path.name))
    except (OSError, ValueError) as error:
        raise Broken(f"{path.name} cannot be read ({error})") from error
    except RecursionError as error:
        raise Broken(f"{path.name} is nested too deep") from error
    if not isinstance(value, dict):
        raise Broken(f"{path.name} does not hold a JSON object")
    return value


def _row(folder: Path, summary: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    where, problems = run_title(folder), []
    if summary.get("schema") != SCHEMA:
        problems.append(
            f"{where}: summary.json has schema {summary.get('schema')!r}, this version reads {SCHEMA}"
        )
    experiment, run = where.split("/")[-2:]
    summary = {"experiment": experiment, "run": run, **summary}
    row, missing = {"folder": readable(str(folder))}, []
    for column in RUN_COLUMNS:
        if column.source:
            value = _dig(summary, column.source)
            row[column.name] = _convert(value, column.dtype, column.source)
            if row[column.name] is None and not column.optional:
                missing.append(column.source)
                if column.name in NEEDED:
                    raise Broken(f"summary.json has no {column.source}")
    if missing and "source" not in summary:  # of a run that was imported nobody here knows the training
        problems.append(f"{where}: summary.json lacks {', '.join(missing)}")
    row["state_bytes_context"] = _convert(
        _dig(summary, f"state_bytes.{row['seq_len']}"), "Int64", "state_bytes"
    )
    identity = _identity(folder)
    # Each seed may have begun with weights of its own, start.sha256; `results` tells apart those that did not.
    row["setting"] = _setting(identity, row, leave_out=("seed", "sha256"))
    row["sweep"] = _setting(identity, row, leave_out=("seed", "sha256", *RATES))
    return row | (_options(identity) if identity else {}), problems


def _dig(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _convert(value: Any, dtype: str, source: str) -> Any:
    if value is None:
        return None
    if dtype == "str":
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        if text != readable(text):
            raise Broken(f"summary.json: {source} is {reprlib.repr(text)}, which is not text")
        return pictured(text)
    if dtype == "boolean" and isinstance(value, bool):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Whole numbers in JSON have no limit, columns do.
        if dtype == "float64" and (isinstance(value, float) or abs(value) <= sys.float_info.max):
            return float(value)
        if dtype == "Int64" and (isinstance(value, int) or value.is_integer()) and int(value) in WHOLE:
            return int(value)
    kinds = {"float64": "a number", "Int64": "a whole number", "boolean": "true or false"}
    raise Broken(f"summary.json: {source} is {reprlib.repr(value)}, not {kinds[dtype]}")


def _identity(folder: Path) -> dict[str, Any] | None:
    """Return what the run's name is a hash of; None where it cannot be read."""
    try:
        return _read_object(folder / "identity.json")
    except (Broken, RecursionError):
        return None


def _setting(identity: dict[str, Any] | None, row: dict[str, Any], leave_out: tuple[str, ...]) -> str:
    """Return a hash of the run's identity without some keys, or of the setting columns where it has no identity.

    The identity also covers options that have no column of their own, which must not be averaged over.
    """
    covered: Any = {name: row[name] for name in SETTING_COLUMNS if name not in leave_out}
    if identity is not None:
        with contextlib.suppress(RecursionError):
            covered = _without(leave_out, identity)
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()[:12]


def _without(keys: tuple[str, ...], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(keys, item) for key, item in value.items() if key not in keys}
    if isinstance(value, list):
        return [_without(keys, item) for item in value]
    return value


_DOCUMENTED = frozenset(column.name for column in RUN_COLUMNS)
_TRAINER = ("max_steps", "accumulate", "precision", "val_every", "val_tokens", "patience")
_IN_COLUMNS = (
    "model.residual.name",
    "model.channel.name",
    "trainer.max_steps",
    "data.content",
    "evaluate.stride",
)


def _options(identity: dict[str, Any]) -> dict[str, float | str]:
    """Return configuration key -> value of what decided the run's result and has no documented column.

    In an identity the keys of `trainer` and `optim` stand together, as its recipe. true, false, null and lists are
    texts, as a command has them.
    """
    options: dict[str, float | str] = {}
    nested = list(identity.items())
    while nested:
        key, value = nested.pop()
        if isinstance(value, dict):
            nested += [(f"{key}.{inner}", item) for inner, item in value.items()]
            continue
        node, _, name = key.partition(".")
        if node == "recipe":
            key = f"{'trainer' if name in _TRAINER else 'optim'}.{name}"
        if name and name not in _DOCUMENTED and key not in _IN_COLUMNS:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            options[key] = value if number else shown(value if isinstance(value, str) else json.dumps(value))
    return options


# Sources of rows: a file in every run's own folder, or the files of an exported folder.

EXPORTED_METRICS = "metrics.parquet"
# Exceptions raised by reading a damaged or foreign file; pyarrow's errors are subclasses of these.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, NotImplementedError, OverflowError)

Key = tuple[str, str]  # experiment, run


@dataclass(frozen=True)
class Source:
    """A file in a folder with the rows of `Results.runs` it covers, by experiment and run, and its name in messages."""

    folder: Path
    file: str
    rows: dict[Key, int]
    title: str
    shared: bool

    @property
    def path(self) -> Path:
        """The path of the file, not yet checked for links (`own`)."""
        return self.folder / self.file

    def own(self) -> Path:
        """Return the path of the file; raises OSError if it is missing or not inside its folder."""
        return own_file(self.folder, self.file)

    def share(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
        """Return the rows of this source's runs, and for each its row of `Results.runs`. Raises KeyError."""
        if not self.shared:
            (row,) = self.rows.values()
            return frame, np.full(len(frame), row)
        keys = zip(frame["experiment"], frame["run"], strict=True)
        rows = np.array([self.rows.get(key, -1) for key in keys], dtype=int)
        return frame[rows >= 0], rows[rows >= 0]


def sources(runs: pd.DataFrame, exported: dict[Key, Path], run_file: str, shared: str) -> Iterator[Source]:
    """Yield the files to read: ``own`` in the folders of runs, ``shared`` in the folders of exports."""
    exports: dict[Path, dict[Key, int]] = {}
    for row, run in enumerate(runs.itertuples(index=False)):
        key = (run.experiment, run.run)
        if key in exported:
            exports.setdefault(exported[key], {})[key] = row
        else:
            yield Source(Path(run.folder), run_file, {key: row}, "/".join(key), shared=False)
    for folder, rows in exports.items():
        yield Source(folder, shared, rows, str(folder), shared=True)


def gather(
    runs: pd.DataFrame, files: Iterator[Source], read: Callable[[Source], pd.DataFrame]
) -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    """Read all rows, in the order of the runs; returns them, the row of ``runs`` of each, and the problems met."""
    frames, rows, problems = [], [], []
    for source in files:
        try:
            frame, owners = source.share(pictured_cells(read(source)))
        except UNREADABLE as error:
            reason = f"no column {error}" if isinstance(error, KeyError) else error
            problems.append(f"{source.title}: {source.path.name} cannot be read ({reason})")
            continue
        frames.append(frame)
        rows.append(owners)
    if not frames:
        return pd.DataFrame(), np.array([], dtype=int), problems
    owners = np.concatenate(rows)
    order = np.argsort(owners, kind="stable")
    return pd.concat(frames, ignore_index=True).iloc[order].reset_index(drop=True), owners[order], problems


def keyed(runs: pd.DataFrame, owners: np.ndarray, frame: pd.DataFrame) -> pd.DataFrame:
    """Prepend the columns that identify the run of each row."""
    keys = runs[list(METRIC_KEYS)].iloc[owners].reset_index(drop=True)
    return pd.concat([keys, frame.drop(columns=METRIC_KEYS, errors="ignore")], axis=1)


def read_folder(folder: Path, kind: str) -> tuple[list[dict[str, Any]], list[str]] | Unfinished:
    """Read the runs in a folder as rows, and the problems met; an `Unfinished` if there are none."""
    if kind == FOREIGN:
        return Unfinished(folder, "foreign", "has no file of a run")
    if kind == CLOSED:
        return Unfinished(folder, "broken", "cannot be opened: no permission")
    if kind == LINK:
        return Unfinished(
            folder, "foreign", f"is a link to {folder.resolve()}; to read that too, name it as well"
        )
    if kind == EXPORT:
        try:
            return _read_exported(folder)
        except Broken as error:
            return Unfinished(folder, "broken", str(error))
    outcome = read_run(folder)
    return outcome if isinstance(outcome, Unfinished) else ([outcome[0]], outcome[1])


def _read_exported(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The runs that were exported to a folder, as rows, and the problems met. Raises Broken."""
    try:
        frame = pictured_cells(pd.read_parquet(own_file(folder, EXPORTED_RUNS)))
        typed = frame.astype({c.name: c.dtype for c in RUN_COLUMNS if c.name in frame})
    except UNREADABLE as error:
        raise Broken(f"{EXPORTED_RUNS} cannot be read ({error})") from error
    missing = [c.name for c in RUN_COLUMNS if c.name not in typed and not c.optional]
    needed = [*NEEDED, "folder", "setting"]
    if set(needed) & set(missing):
        raise Broken(f"{EXPORTED_RUNS} has no column {', '.join(missing)}")
    problems = [f"{folder}: {EXPORTED_RUNS} lacks {', '.join(missing)}"] if missing else []
    complete = typed[needed].notna().all(axis=1)
    if not complete.all():
        lost = f"{(~complete).sum()} of {len(typed)} rows without {', '.join(needed[:-1])} or {needed[-1]}"
        problems.append(f"{folder}: {EXPORTED_RUNS}: {lost} were left out")
        typed = typed[complete]
    rows = typed.astype("object").where(typed.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows], problems
