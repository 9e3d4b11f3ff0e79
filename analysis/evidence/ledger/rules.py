"""The rules of the ledger: how numbers and what a claim needs of them become a verdict."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.evidence.ledger.entries import Claim, Evidence, Missing
from analysis.evidence.ledger.page import NUMBERS, number_rows
from analysis.files import ResultsError
from analysis.loading.files import own_file

# Numbers, their intervals, and what a claim needs of them.

CONFIRMED, REFUTED, INCONCLUSIVE = "confirmed", "refuted", "inconclusive"
GPU, TRAINING = "needs a GPU", "needs longer training"
VERDICTS = (CONFIRMED, REFUTED, INCONCLUSIVE, GPU, TRAINING)

HOLDS, FAILS, OPEN, SHOWN = "holds", "fails", "open", "shown"
SEEDS = 3
"""Seeds below which a claim of quality is a lead."""


@dataclass(frozen=True)
class Needed:
    """The need of a claim: that a number lies between two limits, both included."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        low, high = f"{self.low:,.12g}", f"{self.high:,.12g}"
        if self.low == self.high:
            return f"= {low}"
        if math.isinf(self.low) or math.isinf(self.high):
            return f"≤ {high}" if math.isinf(self.low) else f"≥ {low}"
        return f"{low} to {high}"


def at_most(limit: float) -> Needed:
    """A number of at most this."""
    return Needed(high=limit)


def at_least(limit: float) -> Needed:
    """A number of at least this."""
    return Needed(low=limit)


def about(value: float, share: float = 0.1) -> Needed:
    """A number within this share of a value: what a document gives without an interval is taken as ± a tenth."""
    return Needed(value - share * abs(value), value + share * abs(value))


@dataclass(frozen=True)
class Check:
    """A number with its interval and what the claim needs of it; needed None: it is shown and judges nothing.

    seeds: of trained models, how many; source: the table, study or measurement; timed: a time, which another machine
    need not repeat; machine, load, commit: where it was measured, beside how many other processes, with which code.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str = ""
    needed: Needed | None = None
    seeds: int | None = None
    source: str = ""
    timed: bool = False
    machine: str = ""
    load: float = math.nan
    commit: str = ""

    @property
    def outcome(self) -> str:
        """Return "holds" or "fails" where the whole interval does, "open" where it does in part, "shown" if unjudged.

        A value outside its own interval (an error above its bound) counts alone. With fewer than three seeds no
        number of trained models decides: it stays open, a lead.
        """
        if self.needed is None:
            return SHOWN
        inside = self.low <= self.value <= self.high
        low, high = (self.low, self.high) if inside else (self.value, self.value)
        if math.isnan(low + high) or (self.seeds is not None and self.seeds < SEEDS):
            return OPEN
        if self.needed.low <= low and high <= self.needed.high:
            return HOLDS
        return FAILS if high < self.needed.low or self.needed.high < low else OPEN


@dataclass(frozen=True)
class Lack:
    """A part of a claim that nothing here can settle: the verdict it asks for, why, and the command that would."""

    verdict: str
    why: str
    command: str = ""


@dataclass(frozen=True)
class Remark:
    """A number to know beside the verdict, and in words what it says: of the document's own formulas, say."""

    text: str
    check: Check


def verdict(checks: Sequence[Check], lacks: Sequence[Lack] = ()) -> str:
    """Return refuted where any part fails; else what a part lacks; else inconclusive where one is open; else confirmed.

    Parts that lack something come before open ones: more of what is there would not settle them. A claim without a
    judged part is inconclusive.
    """
    outcomes = [check.outcome for check in checks if check.needed is not None]
    if FAILS in outcomes:
        return REFUTED
    for kind in (GPU, TRAINING, INCONCLUSIVE):
        if any(lack.verdict == kind for lack in lacks):
            return kind
    return CONFIRMED if outcomes and OPEN not in outcomes else INCONCLUSIVE


# Judging a claim: its parts become one verdict.


@dataclass(frozen=True)
class Entry:
    """A judged claim: its numbers, what it lacks, what to know beside the verdict."""

    claim: Claim
    checks: tuple[Check, ...]
    lacks: tuple[Lack, ...]
    remarks: tuple[Remark, ...]

    @property
    def verdict(self) -> str:
        """Return one of `rules.VERDICTS`."""
        return verdict(self.checks, self.lacks)

    @property
    def headline(self) -> Check | None:
        """Return the number that decided: the first that fails, else the first open, else what the claim shows."""
        judged = [check for check in self.checks if check.needed is not None]
        decided = [check for outcome in (FAILS, OPEN) for check in judged if check.outcome == outcome]
        chosen = [
            check for check in self.checks if self.claim.shows and check.name.startswith(self.claim.shows)
        ]
        return next(iter([*decided, *chosen, *judged, *self.checks]), None)


def judge(claim: Claim, evidence: Evidence) -> Entry:
    """Judge one claim. What is missing or cannot be used leaves its part open and is named, with a command."""
    parts: list = []
    try:
        parts.extend(claim.judge(evidence))
    except Missing as missing:
        parts.append(Lack(INCONCLUSIVE, str(missing), missing.command))
    except Exception as error:  # a stranger's file may hold anything; the other claims go on
        parts.append(Lack(INCONCLUSIVE, f"judging it failed ({type(error).__name__}: {error})"))
    kinds = (Check, Lack, Remark)
    return Entry(claim, *(tuple(part for part in parts if isinstance(part, kind)) for kind in kinds))


# Whether numbers that were computed again agree with those of a published ledger.

ROUNDING = 1e-6
"""Relative room on both sides of a published interval: counts and seeded draws may round otherwise elsewhere."""


def disagreements(
    again: pd.DataFrame, published: pd.DataFrame, claims: Collection[int] | None = None
) -> list[str]:
    """Return a sentence for every number that lies outside its published interval.

    Both are tables of `rows.number_rows`; only these claims are compared (None: those that have numbers in `again`). A
    number that one of the tables does not have is named too. A time is another one on every machine and under every
    load: it may lie anywhere, but what the claim needs of it must hold now where it held, and fail where it failed.
    """
    keys = ["claim", "name"]
    published = published[published["claim"].isin(again["claim"].unique() if claims is None else claims)]
    both = again.merge(published, on=keys, how="outer", suffixes=("", "_published"), indicator=True)
    found = [
        f"claim {row.claim}, {row.name_}: only {'now' if row.merged == 'left_only' else 'in the published ledger'}"
        for row in both[both["_merge"] != "both"]
        .rename(columns={"name": "name_", "_merge": "merged"})
        .itertuples()
    ]
    both = both[both["_merge"] == "both"]
    timed = both["timed"].astype(bool)
    if "outcome_published" in both:
        turned = both[timed & (both["outcome"] != both["outcome_published"])]
        found += [
            f"claim {row.claim}, {row[2]}: {row.needed} {row.outcome} now and {row.outcome_published} where it was "
            "published"
            for row in turned[[*keys, "needed", "outcome", "outcome_published"]].itertuples()
        ]
    both = both[~timed]
    room = ROUNDING * both["value_published"].abs()
    outside = (both["value"] < both["low_published"] - room) | (both["value"] > both["high_published"] + room)
    return found + [
        f"claim {row.claim}, {row[2]}: {row.value:g} lies outside {row.low_published:g} to {row.high_published:g}"
        for row in both[outside][[*keys, "value", "low_published", "high_published"]].itertuples()
    ]


def against_published(entries: Sequence[Entry], places: Sequence[Path]) -> list[str]:
    """Return the disagreements of judged claims with the first published ledger in these folders.

    Raises ResultsError where there is none that can be read.
    """
    home = next((place for place in places if (place / NUMBERS).exists()), places[-1])
    try:
        published = pd.read_csv(own_file(home, NUMBERS))
        return disagreements(number_rows(entries), published, {entry.claim.number for entry in entries})
    except (OSError, ValueError, KeyError) as error:
        raise ResultsError(
            f"{home / NUMBERS} is not there or cannot be read ({type(error).__name__}); job=claims alone writes it"
        ) from error
