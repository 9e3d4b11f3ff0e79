"""The ledger as tables: a row a claim, and a row a number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.ledger.judge import Entry
from analysis.ledger.rules import HOLDS, Check

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
    found = [
        {**{name: getattr(check, name) for name in NUMBER_COLUMNS if name not in ("claim", "needed")}, **said}
        for entry in entries
        for check, said in _checks(entry)
    ]
    return pd.DataFrame(found, columns=NUMBER_COLUMNS).astype({"seeds": "Int64"})


def _checks(entry: Entry) -> list[tuple[Check, dict]]:
    """Every number of an entry once, with claim and condition."""
    more = [found.check for found in entry.remarks if found.check not in entry.checks]
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
        "remark": " ".join(f"{found.text}." for found in entry.remarks),
        "lacking": " ".join(f"{lack.verdict}: {lack.why}." for lack in entry.lacks),
        "missing": "; ".join(dict.fromkeys(lack.command for lack in entry.lacks if lack.command)),
        "machine": "" if check is None else where(check),
    }


def where(check: Check) -> str:
    """Return the machine of a number, its table or study where that names none, and other work beside a time."""
    beside = check.timed and not math.isnan(check.load) and check.load > BUSY
    return (check.machine or check.source) + (f"; beside other work (load {check.load:g})" if beside else "")
