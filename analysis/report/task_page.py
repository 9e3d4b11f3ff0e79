"""The table of a report with a row a model and a column a synthetic task."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from analysis.comparing.answer import accuracy_text, rank_text
from analysis.comparing.task_levels import LEVELS, levels_by_task, levels_text
from analysis.comparing.task_table import (
    AHEAD,
    BASELINE,
    BEHIND,
    BETTER,
    TIED,
    UNKNOWN,
    WORSE,
    model_order,
    task_table,
)
from analysis.errors import NoData
from analysis.loading.results import Results
from analysis.plotting.style import table_styles
from analysis.report.report_columns import Field
from analysis.significance.intervals import estimate
from analysis.units import listing

_COUNTED = {
    BETTER: "better on",
    WORSE: "worse on",
    AHEAD: "ahead, a lead, on",
    BEHIND: "behind, a lead, on",
    TIED: "not shown to differ on",
    UNKNOWN: "not compared on",
}


class TaskPage(NamedTuple):
    """Models x tasks: the fields and rows of the table. Empty where no task was tested.

    rows: label, series, dot, and for each task its mean and its cell's text. note: how to read it; long: the same with
    a row a model and task, full precision.
    """

    fields: tuple[Field, ...] = ()
    rows: pd.DataFrame = pd.DataFrame()
    note: str = ""
    long: pd.DataFrame = pd.DataFrame()


def task_page(results: Results, baseline: str | None = None) -> TaskPage:
    """Make the table from the runs of tasks that were scored on their test split. baseline: see `families`."""
    if results.of_tasks.runs.empty:
        return TaskPage()
    try:
        table = task_table(results, baseline)
    except NoData:
        return TaskPage()
    long = _means(table)
    models, styles = model_order(table), table_styles(table, "model")
    tasks = list(dict.fromkeys(sorted(long["task"])))
    rows = [_row(model, styles[model].color, long[long["model"] == model], tasks) for model in models]
    levels = levels_by_task(long)
    fields = [Field("model", lambda row: row.label, kind="name")]
    fields += [_field(place, task, levels_text(levels[task], ".3g")) for place, task in enumerate(tasks)]
    if long["baseline"].notna().any():
        fields.append(Field("beside the baseline", lambda row: row.beside))
    return TaskPage(tuple(fields), pd.DataFrame(rows), _note(long), long)


def _means(table: pd.DataFrame) -> pd.DataFrame:
    """A row per model and task, in the order of the models."""
    names = ["model", "task", *LEVELS, "rank_best", "rank_worst", "baseline", "difference"]
    names += ["difference_ci", "shown", "why", "training_set"]
    found = []
    for _, rows in table.groupby(["model", "task"], sort=False):
        mean, half_width, n = estimate(rows["accuracy"])
        scores = {"accuracy": mean, "accuracy_ci": half_width, "n_seeds": n}
        found.append({**rows[names].iloc[0].to_dict(), **scores})
    return pd.DataFrame(found)


def _row(model: str, color: str, cells: pd.DataFrame, tasks: list[str]) -> dict[str, Any]:
    row = {"label": model, "series": model, "dot": color, "beside": _beside(cells)}
    for place, task in enumerate(tasks):
        of_task = list(cells[cells["task"] == task].itertuples(index=False))
        row |= {f"mean_{place}": of_task[0].accuracy if of_task else float("nan")}
        row |= {f"cell_{place}": _cell(of_task[0]) if of_task else "–"}
    return row


def _cell(cell: tuple) -> str:
    """Accuracy with its interval, places and what is shown: "0.973 ± 0.012 (1–2) better"."""
    sign = cell.shown if cell.shown in (BETTER, WORSE, AHEAD, BEHIND) else ""
    places = "" if pd.isna(cell.rank_best) else f"({rank_text(cell)})"
    return " ".join(filter(None, [accuracy_text(cell.accuracy, cell.accuracy_ci), places, sign]))


def _beside(cells: pd.DataFrame) -> str:
    """On how many tasks a model is better, worse or neither: "better on 1, not shown to differ on 2"."""
    counts = cells["shown"].value_counts()
    told = [f"{words} {counts[shown]}" for shown, words in _COUNTED.items() if shown in counts]
    return ", ".join(told) or BASELINE


def _field(place: int, task: str, levels: str) -> Field:
    return Field(task, lambda row: getattr(row, f"cell_{place}"), levels, f"mean_{place}", "number")


def _note(long: pd.DataFrame) -> str:
    names = listing(long["baseline"].dropna().unique(), 20)
    text = (
        "Share of right answers on the test split, mean over seeds ± 95 % interval (Student t; one seed has none), "
        "each model at its best learning rate; in brackets the places that it may have on that task, every pair of "
        "models compared. "
    )
    if long["baseline"].notna().any():
        text += (
            f"Better and worse: than {names}, by an interval of the difference without zero; a lead is no verdict, "
            "for the reason that the answer gives; no word: not shown to differ. "
        )
    if long["task"].nunique() > 1:
        text += (
            "Tasks are never averaged. Intervals and places hold together within a task; over several tasks more than "
            "one study in twenty has a wrong one."
        )
    return text.rstrip()
