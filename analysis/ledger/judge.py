"""Judging claims: parts become a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.ledger.claim_entries import Claim
from analysis.ledger.evidence import Evidence, Missing
from analysis.ledger.rules import FAILS, INCONCLUSIVE, OPEN, Check, Lack, Remark, verdict


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
