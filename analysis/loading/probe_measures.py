"""Rows of the probes' table `measures`, joined with the columns of their runs that figures need."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pandas as pd

from analysis.errors import NoData
from analysis.loading.labels import short_names
from analysis.loading.probe_tables import advice
from analysis.loading.rate_sweeps import unique_seeds
from analysis.loading.results import Results

SUMMARY = ""
"""Value of `axis` in rows over all positions; in rows of buckets `axis` names the unit of start and end."""

JOINED_COLUMNS = ("experiment", "run", "color", "residual", "depth", "training_set", "seq_len")
COLUMNS = (
    *("run", "name", "label", "color", "residual", "depth", "seed", "training_set", "seq_len"),
    *("layer", "part", "head", "block", "axis", "start", "end", "measure", "value", "count", "split"),
)


def probe_measures(results: Results, names: Collection[str]) -> pd.DataFrame:
    """Return the rows of these measures (COLUMNS): one run a setting and seed, of each run the last step.

    Models without any of them have one row with nothing but label and color, so that all figures of these results
    draw a model in the same style, and captions can name the missing ones. Raises NoData if there is no row at all.
    """
    rows = results.table("measures")
    rows = rows[rows["measure"].isin(names) & rows["value"].notna()]
    if rows.empty:
        raise NoData(f"no run has the measure {' or '.join(names)}; {advice(results)}")
    last = rows.groupby(["experiment", "run"])["step"].transform("max")
    rows = rows[(rows["step"] == last).fillna(True)]
    runs = unique_seeds(results.runs.merge(rows[["experiment", "run"]].drop_duplicates()))
    found = rows.merge(runs[list(JOINED_COLUMNS)], on=["experiment", "run"])[list(COLUMNS)]
    short = short_names(results.runs["name"]).groupby(results.runs["run"]).first()
    found = found.assign(name=found["run"].map(short))
    absent = results.runs[~results.runs["label"].isin(found["label"])].drop_duplicates("label")
    joined = pd.concat([found, absent[["label", "color"]].reindex(columns=COLUMNS).astype(found.dtypes)])
    return joined.reset_index(drop=True)


def select_axis(rows: pd.DataFrame, axis: str | Mapping[str, str]) -> pd.DataFrame:
    """Select summary rows (axis SUMMARY) or the rows of one kind of bucket ("position", "rank", ...).

    A measure such as first_token_mass is in the table both ways: once a head over all positions, and once a bucket;
    a mean over both counts everything twice. axis: one for all rows, or by measure. Rows of models without data
    (`probe_measures`) stay.
    """
    wanted = axis if isinstance(axis, str) else rows["measure"].map(axis)
    return rows[rows["run"].isna() | (rows["axis"].fillna(SUMMARY) == wanted)]
