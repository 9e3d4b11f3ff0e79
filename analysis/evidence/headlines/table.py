"""The headlines as a table, as Markdown, and as lines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.comparing.verdicts import levels_text
from analysis.evidence.headlines.headline_entries import NOT_RUN, Judged
from analysis.evidence.ledger.page import DIGITS, interval, number_rows, with_unit
from analysis.evidence.ledger.rules import VERDICTS
from analysis.files import refuse_link, write_atomically, write_text
from analysis.report.columns import Field
from analysis.report.markdown import escape, table

TABLE, NUMBERS, PAGE = "headlines.csv", "headline_numbers.csv", "headlines.md"


class Row(NamedTuple):
    """A headline in the table: what stands in headlines.csv, and the number and its interval in words."""

    headline: int
    config: str
    question: str
    paper: str
    claimed: str
    rule: str
    verdict: str
    measured: str
    value: float
    low: float
    high: float
    levels: str
    core_minutes: float
    differs: str
    lacking: str
    command: str
    number: str


FIELDS = tuple(
    Field(heading, show, kind=kind)
    for heading, show, kind in (
        ("#", lambda row: str(row.headline), "text"),
        ("question", lambda row: row.question, "text"),
        ("paper", lambda row: row.paper, "text"),
        ("number", lambda row: row.number, "text"),
        ("without the rule", lambda row: row.levels, "text"),
        ("verdict", lambda row: row.verdict, "text"),
        ("core-minutes by the clock", lambda row: minutes(row.core_minutes), "number"),
        ("differs from the paper", lambda row: row.differs, "text"),
    )
)


def rows(entries: Sequence[Judged]) -> list[Row]:
    """Return a row a headline, with the number that decided."""
    return [_row(judged) for judged in entries]


def _row(judged: Judged) -> Row:
    headline, check = judged.headline, judged.entry.headline
    values = (math.nan,) * 3 if check is None else (check.value, check.low, check.high)
    return Row(
        headline.number,
        headline.config,
        headline.statement,
        headline.documents,
        headline.quoted,
        headline.rule,
        judged.verdict,
        "" if check is None else check.name,
        *values,
        levels_text(judged.levels),
        judged.core_minutes,
        headline.differs,
        " ".join(f"{lack.why}." for lack in judged.entry.lacks if judged.verdict != NOT_RUN),
        headline.command,
        "–" if check is None else f"{check.name}: {with_unit(check)} ({interval(check)})",
    )


def minutes(value: float) -> str:
    """Format core-minutes; unknown ones as "–"."""
    return "–" if math.isnan(value) else f"{value:.1f}"


def counted(entries: Sequence[Judged]) -> str:
    """Return how many headlines have which verdict, in words."""
    verdicts = [judged.verdict for judged in entries]
    parts = [f"{verdicts.count(kind)} {kind}" for kind in (*VERDICTS, NOT_RUN) if kind in verdicts]
    return f"{len(entries)} headlines: {', '.join(parts)}"


def lines(entries: Sequence[Judged]) -> list[str]:
    """Return lines for a terminal: every headline with its verdict and number, or the command that runs it."""
    sentences = [
        f"{row.headline:>3}  {row.verdict:<13} {row.question}\n"
        f"     {row.command if row.verdict == NOT_RUN else row.number}"
        for row in rows(entries)
    ]
    return [*sentences, counted(entries)]


def markdown(entries: Sequence[Judged]) -> str:
    """Return the page: the table, and for every headline that was run its rule, its numbers and what it lacks."""
    shown = rows(entries)
    parts = ["# Headlines of the papers", "<!-- headlines -->", f"{counted(entries)}.", table(FIELDS, shown)]
    for row, judged in zip(shown, entries, strict=True):
        parts += [f"## {row.headline}. {row.question}", _entry_text(row)]
        parts += [_numbers(judged)] if judged.entry.checks else []
        parts += [f"Why it is no verdict: {escape(row.lacking)}"] * bool(row.lacking)
        parts.append(f"`{row.command}`")
    return "\n\n".join(parts) + "\n"


def _entry_text(row: Row) -> str:
    return (
        f"**{row.verdict}**. Claimed ({escape(row.paper)}): {escape(row.claimed)}. Rule: {escape(row.rule)}."
        + (f" Right without the task's rule: {row.levels}." if row.levels else "")
    )


def _numbers(judged: Judged) -> str:
    """A list of all numbers, one line each."""
    return "\n".join(
        f"- {escape(check.name)}: {escape(with_unit(check))} ({escape(interval(check))})"
        + (f", needed {escape(check.needed)}: {check.outcome}" if check.needed is not None else "")
        for check in judged.entry.checks
    )


def write(entries: Sequence[Judged], folder: Path) -> list[Path]:
    """Write headlines.csv, headline_numbers.csv and headlines.md into a folder; returns their paths.

    Raises ResultsError where the folder is a link.
    """
    refuse_link(folder)
    folder.mkdir(parents=True, exist_ok=True)
    as_table = pd.DataFrame(rows(entries)).drop(columns="number")
    numbers = number_rows([judged.entry for judged in entries]).rename(columns={"claim": "headline"})
    written = [
        write_atomically(folder / name, partial(frame.to_csv, index=False, float_format=DIGITS))
        for name, frame in ((TABLE, as_table), (NUMBERS, numbers))
    ]
    return [*written, write_text(folder / PAGE, markdown(entries))]
