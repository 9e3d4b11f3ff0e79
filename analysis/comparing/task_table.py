"""Models and synthetic tasks: right answers of every model on every task, and what is shown of the differences."""

from __future__ import annotations

import pandas as pd

from analysis.comparing.comparison_table import order_metric, with_final_validation
from analysis.comparing.task_levels import LEVELS
from analysis.comparing.verdicts import WRONG, Family, families
from analysis.errors import NoData
from analysis.loading.results import Results

BETTER, WORSE, AHEAD, BEHIND, TIED, BASELINE, UNKNOWN = (
    *("better", "worse", "ahead, a lead", "behind, a lead"),
    *("not shown to differ", "baseline", "not compared"),
)
"""What is known of a model beside the baseline."""

COLUMNS = (
    *("run", "model", "color", "seed", "task", *LEVELS, "accuracy", "rank_best"),
    *("rank_worst", "baseline", "difference", "difference_ci", "shown", "why", "training_set"),
)


def task_table(results: Results, baseline: str | None = None) -> pd.DataFrame:
    """Make a row per run of a task at its model's best rate, and in it what is known of the model on that task.

    Columns: accuracy, of the run on the test split; rank_best, rank_worst, the places that its model may have in the
    task; difference, of the model's mean accuracy from the baseline's (positive: better) with the half width of its
    interval; shown, one of the constants above, and why a difference is a lead. Ranks and differences are those of
    `analysis.comparing.verdicts.families`, which compare within a task; models of several experiments or depths are
    told apart. Raises NoData where no task was tested.
    """
    runs = with_final_validation(results.of_tasks)
    found = [one for one in families(runs, order_metric(runs), baseline) if one.metric == WRONG]
    if not found:
        raise NoData("no run of a synthetic task was scored on its test split; add test to evaluate.splits")
    groups = dict.fromkeys((one.experiment, one.depth) for one in found)
    names = {
        group: ", ".join(
            [
                *([group[0]] if len({experiment for experiment, _ in groups}) > 1 else []),
                *([f"{group[1]} layers"] if len({depth for _, depth in groups}) > 1 else []),
            ]
        )
        for group in groups
    }
    rows = pd.concat([_rows(one, names[one.experiment, one.depth]) for one in found], ignore_index=True)
    return rows[list(COLUMNS)]


def _rows(family: Family, group: str) -> pd.DataFrame:
    told = family.table.assign(
        difference=-family.table["difference"],
        shown=[_conclusion(row) for row in family.table.itertuples()],
        why=family.table["lead"],
    )
    columns = ["rank_best", "rank_worst", "baseline", "difference", "difference_ci", "shown", "why"]
    rows = family.runs.assign(accuracy=1 - family.runs[WRONG]).join(told[columns], on="label")
    baseline = None if family.baseline is None else family.table.loc[family.baseline, "model"]
    name = rows["model"] + f" ({group})" if group else rows["model"]
    return rows.assign(model=name, baseline=baseline)


def _conclusion(row: tuple) -> str:
    if row.Index == row.baseline:
        return BASELINE
    if pd.isna(row.difference_p):
        return UNKNOWN
    if row.difference_p >= 0.05:
        return TIED
    if row.lead:
        return AHEAD if row.difference < 0 else BEHIND
    return BETTER if row.difference < 0 else WORSE


def model_order(table: pd.DataFrame) -> list[str]:
    """Return the models of a `task_table`, those with the best places, on average over their tasks, first."""
    places = table.drop_duplicates(["model", "task"])
    middle = (places["rank_best"] + places["rank_worst"]).astype("float64")
    scores = pd.DataFrame({"model": places["model"], "place": middle}).groupby("model")["place"].mean()
    wrong = 1 - table.groupby(["model", "task"])["accuracy"].mean().groupby("model").mean()
    return list(pd.DataFrame({"place": scores, "wrong": wrong}).sort_values(["place", "wrong"]).index)
