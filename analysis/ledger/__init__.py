"""The ledger of claims: what the source documents claim, what was measured, and the verdict that follows.

    from analysis import ledger
    evidence = ledger.Evidence(measured, [Path("results/published")])    # measured: rows of experiments.claims
    entries = [ledger.judge(claim, evidence) for claim in ledger.chosen([1, 13])]

The claims are files in analysis/claims; `rules` says how a verdict follows from numbers.
"""

from analysis.ledger.claim_entries import Claim, chosen, known_claims
from analysis.ledger.evidence import Evidence
from analysis.ledger.judge import Entry, judge
from analysis.ledger.ledger_page import lines
from analysis.ledger.repeats import against_published
from analysis.ledger.write import write

__all__ = [
    "Claim",
    "Entry",
    "Evidence",
    "against_published",
    "chosen",
    "judge",
    "known_claims",
    "lines",
    "write",
]
