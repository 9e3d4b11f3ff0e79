"""Headline results of the papers behind the blocks: what was claimed, what two-core runs say, and a verdict.

    from analysis.evidence import headlines
    judged = headlines.judge_all([Path("results/published")])
    for line in headlines.lines(judged):
        print(line)

A headline is a `Headline` in ``HEADLINES`` of a file in papers/: a claim as the ledger has them, whose evidence is a
comparison, conf/headline/NAME.yaml, trained by job=papers. The rules of the ledger give its verdict.

headline_entries.py  a headline, all of them, and their verdicts
differences.py       right answers of a model, and how many more they are than another's
table.py             the headlines as a table, as Markdown, and as lines for a terminal
"""

from analysis.evidence.headlines.headline_entries import Headline, Judged, judge_all, known_headlines
from analysis.evidence.headlines.table import lines, markdown, rows, write

__all__ = ["Headline", "Judged", "judge_all", "known_headlines", "lines", "markdown", "rows", "write"]
