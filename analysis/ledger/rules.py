"""Rules by which a verdict follows from numbers, their intervals and what a claim needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
