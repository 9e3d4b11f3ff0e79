"""Claims of the source documents, and the evidence that they are judged by."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.evidence import claims
from analysis.evidence.ledger.rules import Check, Lack, Missing, Needed, Remark
from analysis.files import ResultsError, listing
from analysis.loading.files import own_file
from analysis.loading.probes import SUMMARY, best_rates, probe_measures, select_axis
from analysis.loading.results import Results, load_results
from analysis.statistics import estimate

# Evidence: numbers that were just measured, published tables and studies, and a user's own runs.


class Evidence:
    """Everything that claims are judged by; files are read when first asked for, and once.

    measured: rows of experiments.evidence; published: folders of published tables and studies, of which the first that
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
    mean = estimate(values)
    half = 0.0 if math.isnan(mean.half_width) else mean.half_width
    interval = mean.mean - half, mean.mean + half
    return Check(name, mean.mean, *interval, unit, needed, seeds=mean.n, **origin(study))


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


# Claims, as the files of analysis/evidence/claims define them.

Part = Check | Lack | Remark


@dataclass(frozen=True)
class Claim:
    """One row of the ledger, listed in ``CLAIMS`` of a module in analysis/evidence/claims.

    statement: the claim in a sentence; documents: where it stands; quoted: the value there; rule: in words, what the
    claim needs of the numbers; judge(evidence): its parts, numbers with what the claim needs of them; behind: tests
    and commands that measure the numbers anew; shows: beginning of the name of the number that stands for the claim
    where none fails or is open.
    """

    number: int
    statement: str
    documents: str
    quoted: str
    rule: str
    judge: Callable[[Evidence], Iterator[Part]]
    behind: str = ""
    shows: str = ""

    @property
    def command(self) -> str:
        """Return the command that computes this row alone."""
        return f"python run.py job=claims 'claims=[{self.number}]'"


def known_claims() -> dict[int, Claim]:
    """Return every claim by its number, in order. Raises ValueError where two share one."""
    by_number: dict[int, Claim] = {}
    for module in pkgutil.iter_modules(claims.__path__):
        for claim in import_module(f"{claims.__name__}.{module.name}").CLAIMS:
            if claim.number in by_number:
                raise ValueError(
                    f"claim {claim.number} is there twice; the second stands in {module.name}.py"
                )
            by_number[claim.number] = claim
    return dict(sorted(by_number.items()))


def chosen(numbers: Sequence[int]) -> list[Claim]:
    """Return the claims of these numbers, all where none is given. Raises ResultsError for one that there is not."""
    known = known_claims()
    for number in numbers:
        if number not in known:
            raise ResultsError(
                f"no claim {number}; give numbers from {min(known)} to {max(known)}, e.g. claims=[13]"
            )
    return [claim for number, claim in known.items() if not numbers or number in numbers]


# Numbers of trained models from the tables of a study, one value a run.


def summary_rows(results: Results, measure: str) -> pd.DataFrame:
    """Return a measure's rows that sum up each head or place, without those of its buckets."""
    return select_axis(probe_measures(results, (measure,)), SUMMARY)


def at_best_rate(results: Results, measure: str, axis: str = SUMMARY) -> pd.DataFrame:
    """Return a measure's rows of the runs at their model's best learning rate: summaries, or those of an axis."""
    rows = select_axis(probe_measures(results, (measure,)), axis)
    return rows[rows["run"].isin(best_rates(results)["run"])]


def after_last_layer(rows: pd.DataFrame) -> pd.Series:
    """Return the value a run of the product over all sub-blocks: behind the last layer's channel mixer."""
    rows = rows[(rows["part"] == "channel") & (rows["layer"] == rows["depth"] - 1)]
    return rows.groupby("run")["value"].mean()


def gradient_ratio(rows: pd.DataFrame) -> pd.Series:
    """Return the gradient by the streams before the first sub-block over that at the end, a value a run."""
    first = rows[(rows["layer"] == 0) & (rows["part"] == "mixer")].groupby("run")["value"].mean()
    return first / rows[rows["layer"] == rows["depth"]].groupby("run")["value"].mean()
