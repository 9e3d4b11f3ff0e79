"""A paper's headline, the headlines that there are, and their verdicts."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from analysis.comparing.verdicts import known_levels
from analysis.evidence.headlines import papers
from analysis.evidence.headlines.differences import study_of
from analysis.evidence.ledger.entries import Claim, Evidence, Missing
from analysis.evidence.ledger.rules import Entry, judge
from analysis.loading.results import Results

NOT_RUN = "not run"


@dataclass(frozen=True)
class Headline(Claim):
    """A claim (`ledger.Claim`; statement: the question) that a comparison of models on one task decides.

    config: its file in conf/headline; differs: in which settings that is smaller or other than the paper's.
    """

    config: str = ""
    differs: str = ""

    @property
    def command(self) -> str:
        """Return the command that trains its runs."""
        return f"python run.py +experiment=papers headline={self.config}"


@dataclass(frozen=True)
class Judged:
    """A judged headline; run: whether there are runs; core_minutes: of the training of all of them, or NaN.

    levels: what is right without the task's rule (`known_levels`), {} without runs.
    """

    entry: Entry
    run: bool
    core_minutes: float
    levels: dict[str, float] = field(default_factory=dict)

    @property
    def headline(self) -> Headline:
        """Return what was judged."""
        return self.entry.claim  # type: ignore[return-value]

    @property
    def verdict(self) -> str:
        """Return the ledger's verdict, or NOT_RUN where there are no runs."""
        return self.entry.verdict if self.run else NOT_RUN


def known_headlines() -> list[Headline]:
    """Return every headline, by number. Raises ValueError where two share one."""
    files = [
        import_module(f"{papers.__name__}.{module.name}") for module in pkgutil.iter_modules(papers.__path__)
    ]
    module = sorted((one for file in files for one in file.HEADLINES), key=lambda one: one.number)
    if len({one.number for one in module}) < len(module):
        raise ValueError("two headlines share a number")
    return module


def judge_all(places: Sequence[Path]) -> list[Judged]:
    """Judge every headline by the studies in these folders, of which the first that has one counts."""
    evidence = Evidence([], places)
    return [_judged(one, evidence) for one in known_headlines()]


def _judged(headline: Headline, evidence: Evidence) -> Judged:
    entry = judge(headline, evidence)
    try:
        study = study_of(evidence, headline.config)
        return Judged(entry, True, core_minutes(study), known_levels(study.of_tasks.runs))
    except Missing:
        return Judged(entry, False, math.nan)


def core_minutes(study: Results) -> float:
    """Return the minutes of training of a study's runs and of those that selected their rates, one thread each.

    By the clock: beside other work the processor worked less. NaN where the record of the selection has no times.
    """
    return float(study.runs["seconds"].sum() + study.selection["seconds"].sum(skipna=False)) / 60
