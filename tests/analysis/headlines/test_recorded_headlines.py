"""Numbers of headlines for pretended studies: ahead, level, learned or not, leads, longer sequences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from support import recorded
from support.pretended_runs import model, pretended

from analysis.evidence.headlines.differences import ahead, at_length, beats, level
from analysis.evidence.headlines.headline_entries import core_minutes
from analysis.evidence.ledger.entries import Claim, Evidence
from analysis.evidence.ledger.page import lines
from analysis.evidence.ledger.rules import judge
from analysis.loading.results import Results
from analysis.loading.tables import COLUMNS

RECORDED = Path(__file__).with_name("recorded")


def study(**accuracies: list[float]) -> Results:
    """Models at their best rates, three of which were tried before; scored on longer sequences too."""
    parts, tried = [], []
    for name, values in accuracies.items():
        first = sum(map(len, parts))
        runs = " ".join(f"run{first + n:03d}" for n in range(len(values)))
        parts.append(model(f"{name} mqar", values, data="mqar", seconds=60.0 * len(parts) + 30))
        about = (f"{name} mqar", "#112233")
        tried += [
            ("mqar (x)", *about, rate, "", 1, "r", 2.0, "done", 30.0, rate == 3e-3, "", runs * (rate == 3e-3))
            for rate in (1e-3, 3e-3, 1e-2)
        ]
    runs = range(sum(map(len, parts)))
    longer = {
        f"run{n:03d}": [("test", 64, 10 + n, n % 11, 1.0), ("test", 128, 100, 3 * n, 1.0)] for n in runs
    }
    return pretended(*parts, lengths=longer, selection=pd.DataFrame(tried, columns=list(COLUMNS)))


STUDIES = {
    "ahead": study(kda=[0.99, 0.98, 1.0], mla=[0.50, 0.52, 0.51], mom=[0.6, 0.61, 0.62]),
    "behind": study(kda=[0.50, 0.52, 0.51], mla=[0.99, 0.98, 1.0]),
    "little": study(kda=[0.96, 0.97, 0.965], mla=[0.93, 0.935, 0.94]),
    "both learned": study(kda=[0.99, 0.99, 0.995], mla=[0.96, 0.955, 0.96]),
    "none learned": study(kda=[0.90, 0.91, 0.92], mla=[0.5, 0.52, 0.51]),
    "few seeds": study(kda=[0.99, 0.98], mla=[0.50, 0.52, 0.51]),
    "one seed": study(kda=[0.99], mla=[0.50]),
}


class Fixed(Evidence):
    """Evidence of one study, whatever is asked for."""

    def __init__(self, found: Results) -> None:
        super().__init__([], [])
        self.found = found

    def study(self, name: str, command: str) -> Results:
        return self.found


def longer(evidence: Evidence) -> Iterator:
    found = evidence.study("", "")
    yield from ahead(at_length(found, 128), "kda", "mla", trained=found)
    yield from level(found, "kda", "mla")


@pytest.mark.long
def test_judgements_of_studies():
    told = []
    for name, found in STUDIES.items():
        evidence = Fixed(found)
        judges = {
            "beats": beats("c", "kda", "mla", longer=(64, 128)),
            "beats two": beats("c", "mla", "kda", "mom", beside=("mom",)),
            "longer": longer,
            "too long": beats("c", "kda", "mla", longer=(99,)),
        }
        for number, (what, judged) in enumerate(judges.items()):
            told += [
                f"# {name}, {what}",
                *lines([judge(Claim(number, what, "", "", "", judged), evidence)], True),
            ]
        told.append(f"{core_minutes(found):.4f} minutes")
    told.append(f"{core_minutes(pretended(model('kda mqar', [0.5], data='mqar'))):.4f} minutes")
    unknown = STUDIES["one seed"]
    unknown.selection.loc[0, "seconds"] = float("nan")
    told.append(f"{core_minutes(unknown)} minutes")
    recorded.check(RECORDED / "judgements.txt", told)
