"""The ledger as a page that needs no other file, as Markdown, and as lines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from analysis.ledger.judge import Entry
from analysis.ledger.ledger_rows import where
from analysis.ledger.rules import SHOWN, VERDICTS, Check
from analysis.report.markdown import escape, table
from analysis.report.rendering import environment
from analysis.report.report_columns import Field


class NumberRow(NamedTuple):
    """One number of a claim as the page shows it."""

    name: str
    value: str
    interval: str
    needed: str
    outcome: str
    source: str


class ClaimRow(NamedTuple):
    """One claim in the page's first table."""

    claim: int
    statement: str
    documents: str
    quoted: str
    measured: str
    verdict: str


NUMBERS = tuple(
    Field(heading, lambda row, name=name: getattr(row, name), kind=kind)
    for heading, name, kind in (
        ("number", "name", "wrap"),
        ("measured", "value", "right"),
        ("interval or bound", "interval", "right"),
        ("needed", "needed", "right"),
        ("", "outcome", "text"),
        ("where", "source", "wrap"),
    )
)
SUMMARY = tuple(
    Field(heading, lambda row, name=name: str(getattr(row, name)), kind=kind)
    for heading, name, kind in (
        ("#", "claim", "claim"),
        ("claim", "statement", "wrap"),
        ("document", "documents", "wrap"),
        ("claimed", "quoted", "wrap"),
        ("measured", "measured", "wrap"),
        ("verdict", "verdict", "verdict"),
    )
)


def number_text(value: float) -> str:
    """Format a number with four significant digits; counts below a billion whole."""
    if math.isnan(value):
        return "–"
    whole = value == round(value) and 1e3 <= abs(value) < 1e9
    return f"{value:,.0f}" if whole else f"{value:.4g}"


def with_unit(check: Check) -> str:
    """Format a check's number with its unit."""
    return f"{number_text(check.value)} {check.unit}".strip()


def interval(check: Check) -> str:
    """Format a check's interval: "exact", an upper bound of an error, or both ends; of seeds alike, how many."""
    if check.high - check.low <= 1e-6 * abs(check.value):
        alike = "one seed" if check.seeds == 1 else f"{check.seeds} seeds alike"
        return "exact" if check.seeds is None else alike
    return (
        f"≤ {number_text(check.high)}"
        if check.low == 0
        else f"{number_text(check.low)} to {number_text(check.high)}"
    )


def number_row(check: Check) -> NumberRow:
    """Return the texts of a number's row."""
    needed = "" if check.needed is None else str(check.needed)
    outcome = "" if check.outcome == SHOWN else check.outcome
    source = where(check) if check.source in ("", "measured here") else f"{check.source}; {where(check)}"
    return NumberRow(
        check.name,
        with_unit(check),
        interval(check),
        needed,
        outcome,
        source.removesuffix(f"; {check.source}"),
    )


def claim_row(entry: Entry) -> ClaimRow:
    """Return the texts of a claim's row: the number that decided, or why there is none."""
    check, claim = entry.headline, entry.claim
    measured = "–" if check is None else f"{check.name}: {with_unit(check)} ({interval(check)})"
    return ClaimRow(claim.number, claim.statement, claim.documents, claim.quoted, measured, entry.verdict)


def counted(entries: Sequence[Entry]) -> str:
    """Return how many claims have which verdict, in words."""
    verdicts = [entry.verdict for entry in entries]
    parts = [f"{verdicts.count(kind)} {kind}" for kind in VERDICTS if kind in verdicts]
    return f"{len(entries)} claim{'s' * (len(entries) > 1)}: {', '.join(parts)}"


def html(entries: Sequence[Entry]) -> str:
    """Render the ledger as one HTML page; texts are escaped."""
    jinja = environment(autoescape=True)
    jinja.globals["sort_key"] = lambda field, row: ""
    return jinja.get_template("claims.html.j2").render(**_content(entries))


def markdown(entries: Sequence[Entry]) -> str:
    """Render the ledger as Markdown."""
    jinja = environment(autoescape=False)
    jinja.filters["md"] = escape
    return jinja.get_template("claims.md.j2").render(table=table, **_content(entries))


def _content(entries: Sequence[Entry]) -> dict[str, Any]:
    numbers = {entry.claim.number: [number_row(check) for check in entry.checks] for entry in entries}
    return {
        "entries": entries,
        "counted": counted(entries),
        "summary": [claim_row(entry) for entry in entries],
        "numbers": numbers,
        "SUMMARY": SUMMARY,
        "NUMBERS": NUMBERS,
    }


def lines(entries: Sequence[Entry], numbers: bool) -> list[str]:
    """Return lines for a terminal: a claim each with its verdict, and with `numbers` all that it was judged by."""
    found = []
    for entry in entries:
        row = claim_row(entry)
        found.append(f"{row.claim:>3}  {row.verdict:<22} {row.statement}")
        if numbers:
            found += [_line(number_row(check)) for check in entry.checks]
            found += [f"       beside it: {each.text}" for each in entry.remarks]
        found += [
            f"       {lack.why}" + (f": {lack.command}" if lack.command else "") for lack in entry.lacks
        ]
    return [*found, counted(entries)]


def _line(row: NumberRow) -> str:
    needed = f"  needed {row.needed}: {row.outcome}" if row.needed else ""
    return f"       {row.name}: {row.value} ({row.interval}){needed}"
