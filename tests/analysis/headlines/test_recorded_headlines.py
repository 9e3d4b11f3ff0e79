"""Numbers of headlines for pretended studies: ahead, level, learned or not, leads, longer sequences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from support import recorded
from support.pretended_runs import model, pretended

from analysis.headlines.differences import ahead, at_length, beats, level
from analysis.headlines.entries import core_minutes
from analysis.ledger.entries import Claim
from analysis.ledger.evidence import Evidence
from analysis.ledger.judge import judge
from analysis.ledger.page import lines
from analysis.loading.results import Results
from analysis.loading.selection import COLUMNS

RECORDED = Path(__file__).with_name("recorded")
RATES = (1e-3, 3e-3, 1e-2)


def study(**accuracies: list[float]) -> Results:
    """Models at three rates, best at the middle one, scored on longer sequences too."""
    parts = []
    for name, values in accuracies.items():
        for place, rate in enumerate(RATES):
            lower = [value - 0.1 * abs(place - 1) for value in values]
            about = {"lr": rate, "validation_loss": 2.0 + abs(place - 1), "seconds": 60.0 * (place + 1)}
            parts.append(model(f"{name} mqar", lower, data="mqar", **about))
    count = sum(map(len, parts))
    longer = {
        f"run{n:03d}": [("test", 64, 10 + n, n % 11, 1.0), ("test", 128, 100, 3 * n, 1.0)]
        for n in range(count)
    }
    tried = [
        ("", "kda", "#1", 1e-3, "", 1, "r", 2.0, "done", seconds, True, "", "") for seconds in (30.0, 90.0)
    ]
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
