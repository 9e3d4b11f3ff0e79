"""Pretended claims with numbers of every outcome: verdicts, tables, pages, lines, and what differs when run again."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from support import recorded
from support.pretended_runs import model, pretended
from support.said import known
from support.seen_pages import only_in_markdown

from analysis.evidence import headlines
from analysis.evidence.headlines import table as headline_table
from analysis.evidence.headlines.headline_entries import Headline, Judged
from analysis.evidence.ledger import page
from analysis.evidence.ledger.entries import Claim, Evidence, Missing, origin, row_check, seeds_check
from analysis.evidence.ledger.page import disagreements, number_rows, rows
from analysis.evidence.ledger.rules import (
    GPU,
    INCONCLUSIVE,
    TRAINING,
    Check,
    Lack,
    Needed,
    Remark,
    about,
    at_least,
    at_most,
    judge,
)

RECORDED = Path(__file__).with_name("recorded")
STUDY = pretended(
    model("transformer", [3.0, 3.01, 3.02], gpu=[None, "GPU", None], commit=["a" * 40, None, "b" * 40]),
    model("kda", [2.9, 2.8], cpu="Other CPU", experiment="another"),
)
NEEDS = (
    None,
    at_most(2.0),
    at_least(2.0),
    Needed(1.0, 3.0),
    Needed(2.0, 2.0),
    about(-4.0, 0.25),
    about(2.0),
    at_most(1.5),
)
VALUES = (
    *((2.0, 2.0, 2.0), (2.0, 1.0, 3.0), (1.0, 0.0, 1.4), (5.0, 1.0, 2.0), (-4.0, -5.0, -3.0)),
    *((math.nan, 0.0, 1.0), (12345678.0, 12345678.0, 12345678.0), (0.00012345, 0.0, 0.0002), (1.5, 1.2, 1.6)),
)


def checks(seeds: int | None = None, needs=NEEDS) -> list[Check]:
    where = {"source": "measured here", "machine": "a processor", "commit": "abc"}
    return [
        Check(f"number {n} of {k}", *values, "times", need, seeds, **where, timed=k % 2 == 0, load=k / 4)
        for n, need in enumerate(needs)
        for k, values in enumerate(VALUES)
    ]


def claim(number: int, *parts, shows: str = "", **more) -> Claim:
    def yields(evidence):
        yield from parts
        if more.get("fails"):
            raise more["fails"]

    texts = (f"statement {number} | <b>", "a document", "about 3*", "a rule: _below_ 3")
    return Claim(number, *texts, yields, "pytest tests/nothing", shows)


HELD, OPEN, FAILED = (
    Check(name, value, value - 1, value + 1, "ms", at_most(3.0))
    for name, value in (("held", 1), ("open", 3), ("failed", 9))
)
SHOWN = Check("shown", 4.0, 4.0, 4.0, "nats")
CLAIMS = (
    claim(1, HELD, SHOWN),
    claim(2, SHOWN, HELD, OPEN),
    claim(3, OPEN, FAILED, Lack(GPU, "no GPU", "python run.py job=gpu")),
    claim(4, HELD, Lack(TRAINING, "too short", "train"), Lack(GPU, "no GPU", "gpu"), shows="shown"),
    claim(
        5,
        HELD,
        Lack(TRAINING, "too short", "train"),
        Lack(INCONCLUSIVE, "one seed"),
        Lack(TRAINING, "again", "train"),
    ),
    claim(6, HELD, SHOWN, Lack(INCONCLUSIVE, "one seed"), shows="sho"),
    claim(
        7,
        SHOWN,
        Remark("it says otherwise", Check("other", 1.0, 0.0, 1.5)),
        Remark("twice", SHOWN),
    ),
    claim(8),
    claim(9, HELD, fails=Missing("table.csv is not there", "python run.py job=bench")),
    claim(10, HELD, fails=ValueError("odd")),
    claim(11, *checks(2, NEEDS[:2])),
    claim(12, *checks()),
)
ENTRIES = [judge(one, Evidence([], [])) for one in CLAIMS]


def test_outcomes_and_texts_of_numbers():
    lines = []
    for seeds in (None, 1, 2, 3):
        for check in checks(seeds):
            row = page.number_row(check)
            lines.append(
                f"{seeds} seeds {row.value} ({row.interval}) needed {row.needed}: {row.outcome}, {row.source}"
            )
    recorded.check(RECORDED / "outcomes.txt", lines)


def test_tables_and_pages():
    lines = [
        *recorded.flat(known(rows(ENTRIES)), "claims"),
        *recorded.flat(known(number_rows(ENTRIES[:11])), "numbers"),
    ]
    lines += [
        *page.markdown(ENTRIES[:10]).splitlines(),
        *page.lines(ENTRIES[:11], False),
        *page.lines(ENTRIES[:10], True),
    ]
    assert only_in_markdown(page.markdown(ENTRIES[:10]), page.html(ENTRIES[:10])) == []
    recorded.check(RECORDED / "pages.txt", filter(None, lines))


def test_numbers_of_evidence(tmp_path):
    measured = [
        {
            "claim": 1,
            "name": name,
            "value": value,
            "low": low,
            "high": high,
            "unit": "ms",
            "timed": False,
            "machine": None,
            "load": 0.7,
            "commit": "abc",
        }
        for name, value, low, high in (
            ("first one", 1 / 3, 0.1, 0.5),
            ("first two", 2.0, 2.0, 2.0),
            ("second", 3.0, None, 4.0),
        )
    ][:2]
    evidence = Evidence([*measured, {**measured[0], "claim": 2}], [tmp_path, tmp_path / "b"], STUDY)
    lines = [
        line
        for check in evidence.checks(1, {"first o": at_most(1), "first": at_least(2)})
        for line in recorded.flat(check, "measured")
    ]
    row = pd.Series({"a": 1.0, "b": 0.5, "c": 2.0, "machine": "m", "commit": "x"})
    lines += recorded.flat(row_check("row", row, ("a", "b", "c"), None, "t.csv", unit="s", timed=True), "row")
    lines += recorded.flat(
        seeds_check("seeds", pd.Series([1.0, 2.0, 4.0]), at_most(3), STUDY, "nats"), "seeds"
    )
    lines += recorded.flat(seeds_check("seed", pd.Series([1.0]), None, STUDY), "seed")
    lines += recorded.flat(origin(evidence.study("another", "train")), "origin")
    for ask in (
        lambda: list(evidence.checks(1, {"third": None})),
        lambda: evidence.table("t.csv", "make it"),
        lambda: evidence.study("none", "train it"),
    ):
        with pytest.raises(Missing) as missing:
            ask()
        lines.append(f"{missing.value}: {missing.value.command}")
    recorded.check(RECORDED / "evidence.txt", lines)


def test_what_differs_when_numbers_are_computed_again():
    published = number_rows(ENTRIES[:11])
    again = published.copy()
    again["value"] = again["value"] * (1 + 5e-7)
    moved = published.copy()
    moved.loc[[0, 2, 4, 9, 20], "value"] += [3, -9, 0.5, 1, 10.0]
    moved.loc[moved["timed"], "outcome"] = "fails"
    fewer = published.drop(index=[1, 3])
    renamed = fewer.assign(name=fewer["name"].replace("held", "new"))
    lines = []
    for name, table in (
        ("rounded", again),
        ("moved", moved),
        ("fewer", fewer),
        ("renamed", renamed),
        ("one claim", moved[moved["claim"] == 2]),
    ):
        lines += [f"# {name}", *disagreements(table, published)]
    recorded.check(
        RECORDED / "repeats.txt",
        [*lines, *disagreements(published, moved), *disagreements(moved.drop(columns="outcome"), published)],
    )


def test_headlines_of_every_verdict(tmp_path):
    found = []
    for entry in ENTRIES[:10]:
        one = entry.claim
        headline = Headline(
            one.number,
            one.statement,
            one.documents,
            one.quoted,
            one.rule,
            one.judge,
            config=f"c{one.number}",
            differs="smaller",
        )
        minutes = math.nan if one.number == 3 else 12.345 * one.number
        found.append(Judged(judge(headline, Evidence([], [])), one.number != 4, minutes))
    lines = [*headlines.lines(found), *headlines.markdown(found).splitlines()]
    for path in headline_table.write(found, tmp_path):
        lines += [f"# {path.name}", *path.read_text(encoding="utf-8").splitlines()]
    recorded.check(RECORDED / "headlines.txt", filter(None, lines))
