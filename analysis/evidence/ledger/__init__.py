"""The ledger of claims: what the source documents claim, what was measured, and the verdict that follows.

    from analysis.evidence import ledger
    evidence = ledger.Evidence(measured, [Path("results/published")])    # measured: rows of experiments.evidence
    entries = [ledger.judge(claim, evidence) for claim in ledger.chosen([1, 13])]

entries.py  a claim, the evidence for it, and numbers of trained models
rules.py    how a verdict follows from numbers
page.py     the ledger as tables, a page, Markdown and lines for a terminal; whether it agrees with a published one
"""

from analysis.evidence.ledger.entries import Claim, Evidence, chosen, known_claims
from analysis.evidence.ledger.page import against_published, lines, write
from analysis.evidence.ledger.rules import Entry, judge

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
