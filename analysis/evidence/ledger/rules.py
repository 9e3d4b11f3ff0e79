"""The rules of the ledger: how numbers and what a claim needs of them become a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.evidence.ledger.entries import Claim, Evidence

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


class Missing(Exception):
    """Raised where a table or study is not there or cannot be used; `command` makes it."""

    def __init__(self, what: str, command: str) -> None:
        super().__init__(what)
        self.command = command


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
