"""Writing the ledger: tables, a page and its Markdown, each complete or not there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from analysis.files import refuse_link, remove_partials, write_atomically, write_text
from analysis.ledger.judge import Entry
from analysis.ledger.ledger_page import html, markdown
from analysis.ledger.ledger_rows import number_rows, rows

LEDGER, NUMBERS = "claims.csv", "claim_numbers.csv"
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
