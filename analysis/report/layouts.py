"""The two tables of the HyperGraph report over named layouts: quality, and balance of the routers."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from analysis.comparison import compare
from analysis.errors import NoData
from analysis.figures import load_balance
from analysis.loading.results import Results
from analysis.plotting.captions import split_text
from analysis.statistics import estimate
from analysis.units import listing

_SCORES = ("layout", "pattern", "test_loss", "test_loss_ci", "test_perplexity")


class Layouts(NamedTuple):
    """Two layouts or more, a row each; both tables are empty where there are fewer.

    quality: the lowest validation loss first. balance: the lowest imbalance first, for those with a router; imbalance
    is the mean over heads and layers of the largest over the mean load. balance_note: what it was counted over, or why
    there is none.
    """

    quality: pd.DataFrame
    balance: pd.DataFrame
    balance_note: str = ""


def layouts(results: Results) -> Layouts:
    """Make both tables from the runs with a named layout."""
    runs = results.runs[results.runs["layout"].notna() & results.runs["validation_loss"].notna()]
    if runs["layout"].nunique() < 2:
        return Layouts(pd.DataFrame(), pd.DataFrame())
    table = compare(runs)
    names = runs.drop_duplicates("label").set_index("label")["layout"]
    names = names.where(~names.duplicated(keep=False), names.index.to_series())
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
