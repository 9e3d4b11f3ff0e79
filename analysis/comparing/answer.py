"""The answer of a comparison in sentences: who differs from the baseline, who does not, and what was equal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.comparing import text_uncertainty
from analysis.comparing.equality import Equality, equality
from analysis.comparing.task_levels import known_levels, levels_text
from analysis.comparing.verdicts import WRONG, Family
from analysis.significance import seed_correlation, seeds_needed
from analysis.significance.intervals import estimate
from analysis.significance.sample_size import paying_correlation
from analysis.units import MISSING, difference_decimals, listing, signed

UNITS = {"test_bits_per_byte": "bits/byte", WRONG: "of the answers"}
SMALL = 0.01
"""The difference, in the metric's unit, for which the seeds needed are told: 0.01 nats/token is 1 % of perplexity, and
0.01 of the answers one in a hundred."""


class Answer(NamedTuple):
    """Sentences on one family of models: findings, terms (what was equal) and method; title: the family's name."""

    title: str
    findings: list[str]
    terms: list[str]
    method: list[str]

    @property
    def sentences(self) -> list[str]:
        """All sentences in their order."""
        return self.findings + self.terms + self.method


def rank_text(row: tuple) -> str:
    """Format the places that a model may have: "1", or "2–6"."""
    if pd.isna(row.rank_best):
        return MISSING
    return "–".join(dict.fromkeys(str(place) for place in (row.rank_best, row.rank_worst)))


def difference_text(row: tuple) -> str:
    """Format the difference from the baseline with its interval: "−0.031 ± 0.019"."""
    if row.label == row.baseline:
        return "baseline"
    if pd.isna(row.difference):
        return MISSING
    if pd.isna(row.difference_ci):
        return signed(row.difference, 4)
    decimals = difference_decimals(row.difference, row.difference_ci)
    return f"{signed(row.difference, decimals)} ± {row.difference_ci:.{decimals}f}"


def answers(families: Iterable[Family], documents: pd.DataFrame | None = None) -> list[Answer]:
    """Answer for every family of two models or more; titles only where there are several families.

    documents: ``Results.table("documents")``, for what the choice of the test text adds.
    """
    several = [family for family in families if len(family.table) > 1]
    return [
        Answer(
            family.title if len(several) > 1 else "",
            [*_accuracies(family), *_findings(family)],
            _terms(equality(family.runs, family.baseline)),
            _method(family) + ([] if documents is None else text_uncertainty.sentence(family, documents)),
        )
        for family in several
    ]


def _terms(found: Equality) -> list[str]:
    return [f"Equal: {listing(found.equal, 12)}. Not equal: {listing(found.unequal, 12)}.", found.rates]


def _unit(family: Family) -> str:
    return UNITS.get(family.metric, "nats/answer" if family.task else "nats/token")


def _accuracies(family: Family) -> list[str]:
    """The sentence on the shares of right answers of a synthetic task."""
    if family.metric != WRONG:
        return []
    found = {label: rows["test_accuracy"] for label, rows in family.runs.groupby("label")}
    told = (
        f"{name} {accuracy_text(*estimate(found[label])[:2])}" for label, name in _names(family.table).items()
    )
    levels = levels_text(known_levels(family.runs))
    return [f"Right answers ({levels}): {listing(told, 40)}."]


def accuracy_text(mean: float, half_width: float) -> str:
    """Format an accuracy and its interval as "0.973 ± 0.012"; without an interval the mean alone."""
    if math.isnan(mean):
        return MISSING
    return f"{mean:.3f}" + ("" if math.isnan(half_width) else f" ± {half_width:.3f}")


def _findings(family: Family) -> list[str]:
    table = family.table.assign(shown=_names(family.table))
    first = _first_places(family, table["shown"])
    if family.baseline is None:
        return [
            "No baseline: there is no plain transformer, or more than one; baseline=LABEL names a model to compare "
            f"with, one of {listing(table.index, 40)}.",
            *first,
        ]
    name = table.loc[family.baseline, "shown"]
    others = table.drop(family.baseline)
    unknown = others["difference_ci"].isna()
    if (table["n_seeds"] < 2).all():
        return [_chance(others, name)]
    differs = others["difference_p"] < 0.05
    found = _differences(others[differs], name, _unit(family))
    tied = others[~differs & ~unknown]
    if len(tied):
        found.append(_tied(tied, name, _unit(family)))
    alike = unknown & (others["difference"] == 0) & (others["n_seeds"] > 1)
    for which, what in (
        (alike, f"Equal to {name} in every seed"),
        (unknown & ~alike, "Not compared, for want of seeds that differ"),
    ):
        if which.any():
            found.append(f"{what}: {listing(others.loc[which, 'shown'], 20)}.")
    return found + first


def _names(table: pd.DataFrame) -> pd.Series:
    """Names for sentences: labels without learning rates where these are unique."""
    return table["model"].where(~table["model"].duplicated(keep=False), table.index.to_series())


def _chance(others: pd.DataFrame, baseline: str) -> str:
    """The sentence for models of which no deviation over seeds is known."""
    sides = {
        f"ahead of {baseline} by it": others.loc[others["difference"] < 0, "shown"],
        "behind": others.loc[others["difference"] >= 0, "shown"],
    }
    told = "; ".join(f"{side}: {listing(names, 20)}" for side, names in sides.items() if len(names))
    return f"One seed of each model, so that no difference from {baseline} can be told from chance ({told})."


def _differences(rows: pd.DataFrame, baseline: str, unit: str) -> list[str]:
    """A sentence for the models that are better, one for those that are worse; leads have theirs, by reason."""
    found = []
    for lead, group in sorted(rows.groupby("lead"), key=lambda pair: pair[0]):
        for better, verb in ((True, "is better than"), (False, "is worse than")):
            side = group[(group["difference"] < 0) == better]
            if side.empty:
                continue
            verb = ("is ahead of" if better else "is behind") if lead else verb
            each = [
                _difference(row, unit if place == 0 else "") for place, row in enumerate(side.itertuples())
            ]
            told = f"{side['shown'].iloc[0]} {verb} {baseline} {each[0]}{_rest(side, each)}"
            found.append(f"A lead, no verdict ({lead}): {told}." if lead else f"{told}.")
    return found


def _rest(side: pd.DataFrame, each: list[str]) -> str:
    """The models after the first, which are no losers of it: ", and so are mesanet by 0.14 (...) and ..."."""
    rest = [f"{name} {told}" for name, told in zip(side["shown"].iloc[1:], each[1:], strict=True)]
    return f", and so {'is' if len(rest) == 1 else 'are'} {listing(rest, 19)}" if rest else ""


def _difference(row: tuple, unit: str) -> str:
    """A difference and its interval as "by 0.031 nats/token (0.012 to 0.050)", both above zero."""
    size, half = abs(row.difference), row.difference_ci
    digits = difference_decimals(size, half)
    interval = f"{size - half:.{digits}f} to {size + half:.{digits}f}"
    return f"by {size:.{digits}f} {unit} ({'95 % interval ' if unit else ''}{interval})".replace("  ", " ")


def _tied(rows: pd.DataFrame, baseline: str, unit: str) -> str:
    """The sentence on models that are not shown to differ, with the least difference that would have been."""
    ends = rows["difference_ci"].min(), rows["difference_ci"].max()
    span = " to ".join(dict.fromkeys(f"{end:.{difference_decimals(end, end)}f}" for end in ends))
    return (
        f"Not shown to differ from {baseline}: {listing(rows['shown'], 20)} "
        f"(differences below {span} {unit} cannot be told from chance here)."
    )


def _first_places(family: Family, shown: pd.Series) -> list[str]:
    """The sentence on the models that may be the first; none where no model has a rank."""
    table = family.table
    first = table.index[table["rank_best"] == 1]
    if len(first) == 0:
        return []
    if table.loc[first[0], "rank_worst"] > 1:
        told = listing(shown[first], 20)
        return [f"Not shown to be worse than any other model, every pair compared: {told}."]
    leads = dict.fromkeys(reason for other in table.index[1:] for reason in family.lead(first[0], other))
    if leads:
        return [
            f"A lead, no verdict ({'; '.join(leads)}): {shown[first[0]]} is ahead of every other model, every pair "
            "compared."
        ]
    return [f"{shown[first[0]]} is better than every other model, every pair compared."]


def _method(family: Family) -> list[str]:
    """Sentences on how it was decided; none where no deviation over seeds is known."""
    spread, unit, models = family.spread, _unit(family), len(family.table)
    if not spread.degrees or not (spread.deviations > 0).any():
        return []
    deviation = math.sqrt(spread.variance)
    needed = [_needed(deviation, models, unit)] if deviation > 0 else []
    return [_intervals(family, deviation, unit), *needed, *_pairing(family)]


def _intervals(family: Family, deviation: float, unit: str) -> str:
    spread = family.spread
    if spread.pooled:
        how = (
            f"One deviation over seeds for all models, {deviation:.2g} {unit} ({spread.degrees} degrees of freedom; "
            "Cochran's test finds no model noisier than the others"
            + (f", p = {spread.unequal:.2g}" if spread.unequal == spread.unequal else "")
            + "); Dunnett's test"
        )
    else:
        apart = list(family.table.index[spread.apart])
        verb, each = ("is", "its own deviation") if len(apart) == 1 else ("are", "deviations of their own")
        shared = (
            f"For the others one, {deviation:.2g} {unit} ({spread.degrees} degrees of freedom), in which what is "
            "noisier counts as if it were just not too noisy"
            if deviation > 0
            else "Seeds of the others made no difference"
        )
        how = (
            f"{listing(apart, 12)} {verb} noisier over seeds than the others (Cochran's test, p = {spread.unequal:.2g})"
            f": {each}, with long intervals that more seeds would shorten. {shared}. Welch's test with Bonferroni's "
            "correction"
        )
    return (
        f"{how}: all intervals together hold the true differences in 95 % of studies of equally noisy models, and "
        "in 80 to 95 % where one is three times as noisy and few seeds do not show it (docs/comparing.md). Ranks "
        "compare every pair of models, step by step with Holm's correction, which asks for more at first and for less "
        "at last: a model may differ from the baseline and share its rank, or, of few models, have another rank and an "
        "interval with zero."
    )


def _needed(deviation: float, models: int, unit: str) -> str:
    seeds = seeds_needed(SMALL, deviation, models)
    number = "more than 10,000" if seeds is None else f"{seeds:,}"
    return f"To show a difference of {SMALL} {unit} four times in five takes {number} seeds of each model."


def _pairing(family: Family) -> list[str]:
    values = family.runs.pivot_table(index="label", columns="seed", values=family.metric).to_numpy("float64")
    common = ~np.isnan(values).any(axis=0)
    correlation = seed_correlation(values)
    if math.isnan(correlation):
        return []
    pays = paying_correlation(len(values), int(common.sum()))
    what = "Wrong answers" if family.metric == WRONG else "Losses"
    return [
        f"{what} of equal seeds have a correlation of {correlation:.2f} between models; comparing seed by seed would "
        f"pay above {pays:.2f}, and was not done: differences are of means."
    ]
