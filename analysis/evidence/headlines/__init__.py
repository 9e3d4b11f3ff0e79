"""Headline results of the papers behind the blocks: what was claimed, what two-core runs say, and a verdict.

    from analysis import headlines
    found = headlines.judge_all([Path("results/published")])
    print("\n".join(headlines.lines(found)))

A headline is a `Headline` in ``HEADLINES`` of a file of analysis/evidence/headlines/papers: a claim of the ledger
(analysis/evidence/ledger), whose evidence is a comparison, conf/headline/NAME.yaml, trained by job=papers.
The ledger's rules give its verdict.
"""

from analysis.evidence.headlines.headline_entries import Headline, Judged, judge_all, known_headlines
from analysis.evidence.headlines.table import lines, markdown, rows, write

__all__ = ["Headline", "Judged", "judge_all", "known_headlines", "lines", "markdown", "rows", "write"]
