"""A claim of the source documents, and the claims that there are."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module

from analysis import claims
from analysis.errors import ResultsError
from analysis.ledger.evidence import Evidence
from analysis.ledger.rules import Check, Lack, Remark

Part = Check | Lack | Remark


@dataclass(frozen=True)
class Claim:
    """One row of the ledger, listed in ``CLAIMS`` of a module in analysis/claims.

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
    found: dict[int, Claim] = {}
    for module in pkgutil.iter_modules(claims.__path__):
        for claim in import_module(f"{claims.__name__}.{module.name}").CLAIMS:
            if claim.number in found:
                raise ValueError(
                    f"claim {claim.number} is there twice; the second stands in {module.name}.py"
                )
            found[claim.number] = claim
    return dict(sorted(found.items()))


def chosen(numbers: Sequence[int]) -> list[Claim]:
    """Return the claims of these numbers, all where none is given. Raises ResultsError for one that there is not."""
    known = known_claims()
    for number in numbers:
        if number not in known:
            raise ResultsError(f"no claim {number}; there are {min(known)} to {max(known)}: claims=[13]")
    return [claim for number, claim in known.items() if not numbers or number in numbers]
