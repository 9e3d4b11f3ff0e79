"""Measures of the probes beside what figures need to know of their runs."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from analysis.comparison import unique_seeds
from analysis.errors import NoData
from analysis.loading.probe_tables import advice
from analysis.loading.results import Results

OF_RUN = ("experiment", "run", "color", "residual", "depth", "training_set", "seq_len")
COLUMNS = (
    *("run", "name", "label", "color", "residual", "depth", "seed", "training_set", "seq_len"),
    *("layer", "part", "head", "block", "axis", "start", "end", "measure", "value"),
)


def probe_measures(results: Results, names: Collection[str]) -> pd.DataFrame:
    """The rows of these measures, COLUMNS: of each setting and seed one run, of each run the last step.

    Models without any of them have one row with nothing but label and color, so that all figures of these results
    give a model the same look, and captions can say who is missing. Raises NoData if there is no row at all.
    """
    rows = results.table("measures")
    rows = rows[rows["measure"].isin(names) & rows["value"].notna()]
    if rows.empty:
        raise NoData(f"no run has the measure {' or '.join(names)}; {advice(results)}")
    last = rows.groupby(["experiment", "run"])["step"].transform("max")
    rows = rows[(rows["step"] == last).fillna(True)]
    runs = unique_seeds(results.runs.merge(rows[["experiment", "run"]].drop_duplicates()))
    found = rows.merge(runs[list(OF_RUN)], on=["experiment", "run"])[list(COLUMNS)]
    absent = results.runs[~results.runs["label"].isin(found["label"])].drop_duplicates("label")
    joined = pd.concat([found, absent[["label", "color"]].reindex(columns=COLUMNS).astype(found.dtypes)])
    return joined.reset_index(drop=True)
