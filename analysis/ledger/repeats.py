"""Agreement of numbers that were computed again with those of a published ledger."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from analysis.errors import ResultsError
from analysis.ledger.judge import Entry
from analysis.ledger.ledger_rows import number_rows
from analysis.ledger.write import NUMBERS
from analysis.loading.safe_read import own_file

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
    found = [
        f"claim {row.claim}, {row.name_}: only {'now' if row.merged == 'left_only' else 'in the published ledger'}"
        for row in both[both["_merge"] != "both"]
        .rename(columns={"name": "name_", "_merge": "merged"})
        .itertuples()
    ]
    both = both[both["_merge"] == "both"]
    timed = both["timed"].astype(bool)
    if "outcome_published" in both:
        turned = both[timed & (both["outcome"] != both["outcome_published"])]
        found += [
            f"claim {row.claim}, {row[2]}: {row.needed} {row.outcome} now and {row.outcome_published} where it was "
            "published"
            for row in turned[[*keys, "needed", "outcome", "outcome_published"]].itertuples()
        ]
    both = both[~timed]
    room = ROUNDING * both["value_published"].abs()
    outside = (both["value"] < both["low_published"] - room) | (both["value"] > both["high_published"] + room)
    return found + [
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
