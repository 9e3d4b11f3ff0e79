"""Tables below results/published that a mark can name.

sinks/measures              results/published/sinks/measures.parquet, each row joined with its run's columns
                            of runs.parquet; with another ending: cpu.csv
routing:mutual_information  the table of that figure of results/published/routing
quickstart/measures@58d7e9a the table as of that commit: for a text older than today's table
"""

from __future__ import annotations

import io
import re
import subprocess
import zipfile
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from analysis.files import NoData, ResultsError
from analysis.gallery import listed
from analysis.loading.results import filled, load_results

SOURCE = re.compile(
    r"(?P<place>[\w-]+(?:/[\w-]+)*(?:\.\w+)?)(?::(?P<figure>\w+))?(?:@(?P<commit>[0-9a-f]{7,40}))?"
)
PUBLISHED = Path("results/published")


class Unavailable(Exception):
    """Raised for a table of an earlier commit that this copy of the repository does not hold."""


@dataclass
class Tables:
    """Cache of tables by the name that marks give them, each read once. root: the repository."""

    root: Path
    _known: dict[str, pd.DataFrame] = field(default_factory=dict)
    _earlier: dict[str, TemporaryDirectory] = field(default_factory=dict)

    def get(self, source: str) -> pd.DataFrame:
        """Return a table by name; ResultsError if it does not exist, Unavailable for history that is not here."""
        if source not in self._known:
            self._known[source] = self._read(source)
        return self._known[source]

    def _read(self, source: str) -> pd.DataFrame:
        match = SOURCE.fullmatch(source)
        if match is None:
            raise ResultsError(f"'{source}' names no table: FOLDER/TABLE, FOLDER:FIGURE or FILE.csv")
        root = self._at(match["commit"]) if match["commit"] else self.root
        place = root / PUBLISHED / match["place"]
        return _drawn(place, match["figure"]) if match["figure"] else _stored(place)

    def _at(self, commit: str) -> Path:
        """A folder with results/published as of the commit."""
        if commit not in self._earlier:
            folder = TemporaryDirectory(prefix="archzoo-")
            with zipfile.ZipFile(io.BytesIO(self._archive(commit))) as archive:
                archive.extractall(folder.name)
            self._earlier[commit] = folder
        return Path(self._earlier[commit].name)

    def _archive(self, commit: str) -> bytes:
        shallow = self._git("rev-parse", "--is-shallow-repository")
        if shallow is None or shallow.strip() == b"true":
            raise Unavailable(f"tables of commit {commit} need a clone with its history")
        archive = self._git("archive", "--format=zip", commit, "--", PUBLISHED.as_posix())
        if archive is None:
            raise ResultsError(f"no commit {commit} with {PUBLISHED.as_posix()} in this repository")
        return archive

    def _git(self, *words: str) -> bytes | None:
        """Return the output of git; None where it fails or is not installed."""
        try:
            done = subprocess.run(["git", "-C", str(self.root), *words], capture_output=True, check=False)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None


def _stored(place: Path) -> pd.DataFrame:
    path = place if place.suffix else place.with_suffix(".parquet")
    if not path.is_file():
        there = sorted(p.name for p in path.parent.glob("*") if p.suffix in (".parquet", ".csv"))
        raise ResultsError(f"no table {_name(path)}; there {_are(there)}")
    if path.suffix == ".csv":
        return pd.read_csv(path)
    return _with_runs(filled(pd.read_parquet(path)), path.with_name("runs.parquet"))


def _with_runs(table: pd.DataFrame, runs: Path) -> pd.DataFrame:
    """Join a table of measures with the columns of each row's run: residual scheme, depth, learning rate ..."""
    if "run" not in table or not runs.is_file():
        return table
    known = pd.read_parquet(runs)
    new = [name for name in known.columns if name not in table]
    return table.merge(
        known[["experiment", "run", *new]], on=["experiment", "run"], how="left", validate="m:1"
    )


def _drawn(folder: Path, figure: str) -> pd.DataFrame:
    entry = next((entry for entry in listed() if entry.name == figure), None)
    if entry is None:
        raise ResultsError(f"no figure '{figure}'; each file in analysis/figures lists its own")
    if not folder.is_dir():
        raise ResultsError(f"no folder {_name(folder)}")
    try:
        return import_module(entry.family).table(load_results(folder), **entry.options)
    except NoData as reason:
        raise ResultsError(f"figure {figure} of {_name(folder)}: {reason}") from reason


def _name(path: Path) -> str:
    """Return the path relative to the repository."""
    parts = path.parts
    start = max(n for n in range(len(parts)) if parts[n : n + 2] == PUBLISHED.parts)
    return "/".join(parts[start:])


def _are(names: list[str]) -> str:
    return f"are {', '.join(names)}" if names else "is no table at all"
