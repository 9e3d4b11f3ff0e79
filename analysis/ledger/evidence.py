"""Evidence that claims are judged by: numbers that were just measured, published tables and studies, a user's runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.errors import ResultsError
from analysis.ledger.rules import Check, Needed
from analysis.loading.results import Results, load_results
from analysis.loading.safe_read import own_file
from analysis.significance.intervals import estimate
from analysis.units import listing


class Missing(Exception):
    """Raised where a table or study is not there or cannot be used; `command` makes it."""

    def __init__(self, what: str, command: str) -> None:
        super().__init__(what)
        self.command = command


class Evidence:
    """Everything that claims are judged by; files are read when first asked for, and once.

    measured: rows of experiments.claims; published: folders of published tables and studies, of which the first that
    has one counts; runs: a user's runs, whose experiments take the place of published studies of the same name.
    """

    def __init__(
        self, measured: Sequence[Mapping[str, Any]], published: Sequence[Path], runs: Results | None = None
    ) -> None:
        self._measured, self._places, self._runs = measured, published, runs
        self._tables: dict[str, pd.DataFrame] = {}
        self._studies: dict[str, Results] = {}

    def checks(self, claim: int, needed: Mapping[str, Needed] | None = None) -> Iterator[Check]:
        """Yield the numbers measured for a claim; needed: beginning of a name -> what the claim needs of it.

        Raises Missing if no measured number's name begins with a needed one: the verdict would lack it.
        """
        rows = [row for row in self._measured if row["claim"] == claim]
        for start in needed or {}:
            if not any(row["name"].startswith(start) for row in rows):
                raise Missing(
                    f"no number '{start}' was measured", f"python run.py job=claims 'claims=[{claim}]'"
                )
        for row in rows:
            known = (need for start, need in (needed or {}).items() if row["name"].startswith(start))
            fields = ("name", "value", "low", "high", "unit", "timed", "machine", "load", "commit")
            values = {key: _rounded(row[key]) for key in fields if row[key] is not None}
            yield Check(needed=next(known, None), source="measured here", **values)

    def table(self, name: str, command: str) -> pd.DataFrame:
        """Return the published table NAME.csv. Raises Missing, with the command that makes it."""
        if name not in self._tables:
            try:
                self._tables[name] = pd.read_csv(own_file(self._home(name), name))
            except (OSError, ValueError) as error:
                raise Missing(
                    f"{name} is not there or cannot be read ({type(error).__name__})", command
                ) from error
        return self._tables[name]

    def study(self, name: str, command: str) -> Results:
        """Return the runs of an experiment: the user's, else the published ones. Raises Missing."""
        if name not in self._studies:
            self._studies[name] = self._of_user(name) or self._published(name, command)
        return self._studies[name]

    def _home(self, name: str) -> Path:
        """The first place that has a table or study of this name, else the last."""
        return next((place for place in self._places if (place / name).exists()), self._places[-1])

    def _of_user(self, name: str) -> Results | None:
        if self._runs is None or not (self._runs.runs["experiment"] == name).any():
            return None
        return only(self._runs, "experiment", name)

    def _published(self, name: str, command: str) -> Results:
        try:
            return load_results(self._home(name) / name)
        except ResultsError as error:
            raise Missing(f"there are no runs of the study {name}", command) from error


def _rounded(value: Any) -> Any:
    """A number to nine digits, as the ledger's tables have it, so that verdicts and pages follow from these."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def only(results: Results, column: str, value: str) -> Results:
    """Return the results of the runs with this value in a column that runs and metrics share."""
    runs, metrics = (x[x[column] == value].reset_index(drop=True) for x in (results.runs, results.metrics))
    return replace(results, runs=runs, metrics=metrics, tables={})


def row_check(
    name: str, row: pd.Series, columns: tuple[str, str, str], needed: Needed | None, source: str, **more: Any
) -> Check:
    """Make a check of a table's row: the columns of the value and of its interval's ends."""
    value, low, high = (float(row[column]) for column in columns)
    facts = {key: str(row[key]) for key in ("machine", "commit") if key in row}
    return Check(name, value, low, high, needed=needed, source=source, **facts, **more)


def seeds_check(name: str, values: pd.Series, needed: Needed | None, study: Results, unit: str = "") -> Check:
    """Make a check of a value a seed: their mean with its 95 % t interval; one seed has none."""
    found = estimate(values)
    half = 0.0 if math.isnan(found.half_width) else found.half_width
    interval = found.mean - half, found.mean + half
    return Check(name, found.mean, *interval, unit, needed, seeds=found.n, **origin(study))


def origin(study: Results) -> dict[str, str]:
    """Return source, machine and commit of a study's runs, as fields of a check."""
    runs = study.runs
    machines = sorted(set(runs["gpu"].fillna(runs["cpu"]).dropna()))
    commits = sorted({str(commit)[:12] for commit in runs["commit"].dropna()})
    return {
        "source": f"study {', '.join(sorted(set(runs['experiment'])))}",
        "machine": listing(machines, 2),
        "commit": listing(commits, 3),
    }
