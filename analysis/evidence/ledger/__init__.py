"""The ledger of claims: what the source documents claim, what was measured, and the verdict that follows.

    from analysis.evidence import ledger
    evidence = ledger.Evidence(measured, [Path("results/published")])    # measured: rows of experiments.evidence
    entries = [ledger.judge(claim, evidence) for claim in ledger.chosen([1, 13])]

entries.py  a claim, the evidence for it, and numbers of trained models
rules.py    how a verdict follows from numbers, and whether they agree with a published ledger
page.py     the ledger as tables, as a page, as Markdown, and as lines for a terminal
"""

from analysis.evidence.ledger.entries import Claim, Evidence, chosen, known_claims
from analysis.evidence.ledger.page import lines, write
from analysis.evidence.ledger.rules import Entry, against_published, judge

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
