"""The ledger as tables, a page that needs no other file, Markdown and lines; and its agreement with a published one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.evidence.ledger.rules import HOLDS, SHOWN, VERDICTS, Check, Entry
from analysis.files import ResultsError, refuse_link, remove_partials, write_atomically, write_text
from analysis.loading.files import own_file
from analysis.report.columns import Field
from analysis.report.markdown import escape, table
from analysis.report.page import environment

# Tables: a row a claim, and a row a number.

BUSY = 0.5
"""Processes a core beside which a time says so."""
COLUMNS = [
    *("claim", "verdict", "statement", "documents", "quoted", "rule", "measured"),
    *("value", "low", "high", "unit", "needed", "parts", "remark", "lacking", "missing"),
    *("command", "behind", "machine", "commit"),
]
NUMBER_COLUMNS = [
    *("claim", "name", "value", "low", "high", "unit", "needed", "outcome", "seeds", "timed", "source"),
    *("machine", "load", "commit"),
]


def rows(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return a row a claim (COLUMNS): the number that decided, with what was needed of it, and the verdict."""
    return pd.DataFrame([_row(entry) for entry in entries], columns=COLUMNS)


def number_rows(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return a row a number (NUMBER_COLUMNS) of every claim, remarks last."""
    numbers = [
        {**{name: getattr(check, name) for name in NUMBER_COLUMNS if name not in ("claim", "needed")}, **said}
        for entry in entries
        for check, said in _checks(entry)
    ]
    return pd.DataFrame(numbers, columns=NUMBER_COLUMNS).astype({"seeds": "Int64"})


def _checks(entry: Entry) -> list[tuple[Check, dict]]:
    """Every number of an entry once, with claim and condition."""
    more = [remark.check for remark in entry.remarks if remark.check not in entry.checks]
    return [
        (check, {"claim": entry.claim.number, "needed": "" if check.needed is None else str(check.needed)})
        for check in (*entry.checks, *more)
    ]


def _row(entry: Entry) -> dict:
    claim, check = entry.claim, entry.headline
    judged = [each for each in entry.checks if each.needed is not None]
    held = sum(each.outcome == HOLDS for each in judged)
    about = {
        name: getattr(claim, name)
        for name in ("statement", "documents", "quoted", "rule", "command", "behind")
    }
    number = (
        {}
        if check is None
        else {name: getattr(check, name) for name in ("value", "low", "high", "unit", "commit")}
    )
    return {
        **about,
        **number,
        "claim": claim.number,
        "verdict": entry.verdict,
        "measured": "" if check is None else check.name,
        "needed": "" if check is None or check.needed is None else str(check.needed),
        "parts": f"{held} of {len(judged)} hold" if judged else "none judged",
        "remark": " ".join(f"{remark.text}." for remark in entry.remarks),
        "lacking": " ".join(f"{lack.verdict}: {lack.why}." for lack in entry.lacks),
        "missing": "; ".join(dict.fromkeys(lack.command for lack in entry.lacks if lack.command)),
        "machine": "" if check is None else where(check),
    }


def where(check: Check) -> str:
    """Return the machine of a number, its table or study where that names none, and other work beside a time."""
    beside = check.timed and not math.isnan(check.load) and check.load > BUSY
    return (check.machine or check.source) + (f"; beside other work (load {check.load:g})" if beside else "")


# HTML, Markdown and lines for a terminal.


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


NUMBER_FIELDS = tuple(
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
    integral = value == round(value) and 1e3 <= abs(value) < 1e9
    return f"{value:,.0f}" if integral else f"{value:.4g}"


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
        "NUMBERS": NUMBER_FIELDS,
    }


def lines(entries: Sequence[Entry], numbers: bool) -> list[str]:
    """Return lines for a terminal: a claim each with its verdict, and with `numbers` all that it was judged by."""
    sections = []
    for entry in entries:
        row = claim_row(entry)
        sections.append(f"{row.claim:>3}  {row.verdict:<22} {row.statement}")
        if numbers:
            sections += [_line(number_row(check)) for check in entry.checks]
            sections += [f"       beside it: {each.text}" for each in entry.remarks]
        sections += [
            f"       {lack.why}" + (f": {lack.command}" if lack.command else "") for lack in entry.lacks
        ]
    return [*sections, counted(entries)]


def _line(row: NumberRow) -> str:
    needed = f"  needed {row.needed}: {row.outcome}" if row.needed else ""
    return f"       {row.name}: {row.value} ({row.interval}){needed}"


LEDGER, NUMBERS = "claims.csv", "claim_numbers.csv"
# Writing all of these: each file is complete or not there.

DIGITS = "%.9g"
"""Digits of numbers in tables: the largest count has nine."""


def write(entries: Sequence[Entry], folder: Path) -> list[Path]:
    """Write claims.csv, claim_numbers.csv, claims.md and claims.html into a folder; returns their paths.

    Raises ResultsError where the folder is a link.
    """
    refuse_link(folder)
    folder.mkdir(parents=True, exist_ok=True)
    remove_partials(folder)
    tables = {LEDGER: rows(entries), NUMBERS: number_rows(entries)}
    written = [
        write_atomically(folder / name, partial(table.to_csv, index=False, float_format=DIGITS))
        for name, table in tables.items()
    ]
    return [
        *written,
        write_text(folder / "claims.md", markdown(entries)),
        write_text(folder / "claims.html", html(entries)),
    ]


# Whether numbers that were computed again agree with those of a published ledger.

ROUNDING = 1e-6
"""Relative room on both sides of a published interval: counts and seeded draws may round otherwise elsewhere."""


def disagreements(
    again: pd.DataFrame, published: pd.DataFrame, claims: Collection[int] | None = None
) -> list[str]:
    """Return a sentence for every number that lies outside its published interval.

    Both are tables of `rows.number_rows`; only these claims are compared (None: those that have numbers in `again`). A
    number that one of the tables does not have is named too. A time is another one on every machine and under every
    load: it may lie anywhere, but what the claim needs of it must hold now where it held, and fail where it failed.
    """
    keys = ["claim", "name"]
    published = published[published["claim"].isin(again["claim"].unique() if claims is None else claims)]
    both = again.merge(published, on=keys, how="outer", suffixes=("", "_published"), indicator=True)
    differing = [
        f"claim {row.claim}, {row.name_}: only {'now' if row.merged == 'left_only' else 'in the published ledger'}"
        for row in both[both["_merge"] != "both"]
        .rename(columns={"name": "name_", "_merge": "merged"})
        .itertuples()
    ]
    both = both[both["_merge"] == "both"]
    timed = both["timed"].astype(bool)
    if "outcome_published" in both:
        turned = both[timed & (both["outcome"] != both["outcome_published"])]
        differing += [
            f"claim {row.claim}, {row[2]}: {row.needed} {row.outcome} now and {row.outcome_published} where it was "
            "published"
            for row in turned[[*keys, "needed", "outcome", "outcome_published"]].itertuples()
        ]
    both = both[~timed]
    room = ROUNDING * both["value_published"].abs()
    outside = (both["value"] < both["low_published"] - room) | (both["value"] > both["high_published"] + room)
    return differing + [
        f"claim {row.claim}, {row[2]}: {row.value:g} lies outside {row.low_published:g} to {row.high_published:g}"
        for row in both[outside][[*keys, "value", "low_published", "high_published"]].itertuples()
    ]


def against_published(entries: Sequence[Entry], places: Sequence[Path]) -> list[str]:
    """Return the disagreements of judged claims with the first published ledger in these folders.

    Raises ResultsError where there is none that can be read.
    """
    home = next((place for place in places if (place / NUMBERS).exists()), places[-1])
    try:
        published = pd.read_csv(own_file(home, NUMBERS))
        return disagreements(number_rows(entries), published, {entry.claim.number for entry in entries})
    except (OSError, ValueError, KeyError) as error:
        raise ResultsError(
            f"{home / NUMBERS} is not there or cannot be read ({type(error).__name__}); job=claims alone writes it"
        ) from error
