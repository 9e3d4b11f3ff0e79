"""The two tables of the HyperGraph report over named layouts: quality, and balance of the routers."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from analysis.comparing.comparison_table import compare
from analysis.errors import NoData
from analysis.figures import layout_ranking, load_balance
from analysis.loading.results import Results
from analysis.plotting.captions import split_text
from analysis.significance.intervals import estimate
from analysis.units import listing

_SCORES = ("layout", "pattern", "test_loss", "test_loss_ci", "test_perplexity")


class Layouts(NamedTuple):
    """A row a layout: two named or more, and what `layout_ranking` compares them with; empty where there are fewer.

    quality: the lowest validation loss first. balance: the lowest imbalance first, for those with a router; imbalance
    is the mean over heads and layers of the largest over the mean load. balance_note: what it was counted over, or why
    there is none.
    """

    quality: pd.DataFrame
    balance: pd.DataFrame
    balance_note: str = ""


def layouts(results: Results) -> Layouts:
    """Make both tables from the runs that `layout_ranking` compares, where two or more of their layouts have a name."""
    runs = _runs(results)
    if runs.empty:
        return Layouts(pd.DataFrame(), pd.DataFrame())
    table = compare(runs)
    names = runs.drop_duplicates("label").set_index("label")["layout"]
    unnamed = names.isna() | names.duplicated(keep=False)
    names = names.where(~unnamed, names.index.to_series())
    quality = table.assign(layout=table["label"].map(names))
    quality = quality.sort_values(["validation_loss", "layout"], ignore_index=True)
    try:
        loads = load_balance.table(results)
    except NoData as reason:
        return Layouts(quality, pd.DataFrame(), f"No balance: {reason}.")
    loads = loads[loads["label"].isin(quality["label"])]
    balance = _balance(quality, loads)
    return Layouts(
        quality, balance, f"Counted on {split_text(loads)}." if len(balance) else "No layout has a router."
    )


def _runs(results: Results) -> pd.DataFrame:
    """Select the runs of the groups with two named layouts or more."""
    if results.runs.empty:
        return results.runs
    try:
        ranked = layout_ranking.table(results)
    except NoData:
        return results.runs.iloc[:0]
    runs = results.runs.merge(ranked[["run", "group"]].drop_duplicates(), on="run")
    return runs[runs.groupby("group")["layout"].transform("nunique") > 1].drop_duplicates(
        ["experiment", "run"]
    )


def _balance(quality: pd.DataFrame, loads: pd.DataFrame) -> pd.DataFrame:
    values = loads[loads["measure"] == "imbalance"].groupby(["label", "run"])["value"].mean()
    means = [(label, *estimate(group)[:2]) for label, group in values.groupby("label")]
    found = pd.DataFrame(means, columns=["label", "imbalance", "imbalance_ci"])
    table = quality[["label", *_SCORES]].merge(found, on="label")
    table = table.sort_values(["imbalance", "test_loss"], ignore_index=True)
    return table.assign(notes=[_notes(row, table) for row in table.itertuples()])


def _notes(row: tuple, table: pd.DataFrame) -> str:
    best = {"balance": "imbalance", "test loss": "test_loss"}
    found = [what for what, column in best.items() if getattr(row, column) == table[column].min()]
    return f"best {listing(found)}" if found else ""
