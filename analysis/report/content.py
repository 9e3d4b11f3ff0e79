"""Content of a report in any format, gathered once from the results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.caveats.comparison import caveats
from analysis.caveats.speeds import conditions
from analysis.comparing.answer import Answer, answers
from analysis.comparing.comparison_table import NAMES, compare, order_metric, with_final_validation
from analysis.comparing.verdicts import families
from analysis.gallery import ReportFigure, draw_figures
from analysis.loading.probe_tables import records
from analysis.loading.results import Results
from analysis.plotting.style import series_styles
from analysis.report import summary
from analysis.report.layouts import Layouts, layouts
from analysis.report.report_columns import Field, comparison, run_fields
from analysis.report.samples import Samples, samples
from analysis.report.task_page import TaskPage, task_page


class Section(NamedTuple):
    """A section of figures: those drawn, and those that these results do not support."""

    title: str
    slug: str
    drawn: list[ReportFigure]
    absent: list[ReportFigure]


class Compared(NamedTuple):
    """A table of the comparison: of text, or of synthetic tasks; file: its name in tables/."""

    file: str
    of_tasks: bool
    fields: tuple[Field, ...]
    rows: pd.DataFrame


class DrawnRun(NamedTuple):
    """A run that a figure was drawn from, with the place of its config on the page."""

    label: str
    seed: Any
    run: str
    anchor: str


@dataclass(frozen=True)
class Content:
    """Content of a report.

    comparison: analysis.comparing.comparison_table.compare, with `series`, the model's name in figures, and `dot`, its
    colour; compared: the same as tables of text and of synthetic tasks. tasks: models x tasks. runs: Results.runs, with
    `anchor` (its place on the page), `config` and `probes` (the texts of config.yaml and probes.json, or None) and
    `described` (its blocks); run_fields: their columns. answers: what the comparison says, in sentences. figures: all
    figures; sections: the same by section. metric: the metric that ranks the models of text; speeds: the load while
    each run trained. layouts: tables of the named layouts, empty where there are fewer than two.
    """

    title: str
    summary: str
    answers: list[Answer]
    caveats: list[str]
    metric: str
    comparison: pd.DataFrame
    compared: list[Compared]
    tasks: TaskPage
    run_fields: tuple[Field, ...]
    figures: list[ReportFigure]
    samples: Samples
    runs: pd.DataFrame
    speeds: str
    layouts: Layouts
    machines: pd.DataFrame
    versions: pd.DataFrame
    missing: list[str]

    @property
    def of_text(self) -> bool:
        """Return whether some run is on text, of which there may be samples."""
        return bool(self.runs["task"].isna().any())

    @property
    def sections(self) -> list[Section]:
        """Return the figures by section, in the order of the list."""
        found: dict[str, list[ReportFigure]] = {}
        for figure in self.figures:
            found.setdefault(figure.section or "More", []).append(figure)
        return [
            Section(
                title,
                title.lower().replace(" ", "-"),
                [one for one in group if not one.missing],
                [one for one in group if one.missing],
            )
            for title, group in found.items()
        ]

    @cached_property
    def _all_drawn_runs(self) -> list[DrawnRun]:
        columns = (self.runs[name] for name in DrawnRun._fields)
        return [DrawnRun(*values) for values in zip(*columns, strict=True)]

    def drawn_runs(self, figure: ReportFigure) -> dict[str, list[DrawnRun]]:
        """Return the runs that a figure was drawn from, by label."""
        found: dict[str, list[DrawnRun]] = {}
        for one in self._all_drawn_runs:
            if not figure.runs or one.run in figure.runs:
                found.setdefault(one.label, []).append(one)
        return found


def gather(results: Results, figures: Path, workers: int = 1, baseline: str | None = None) -> Content:
    """Draw the figures into a folder with ``workers`` processes and gather all other content."""
    runs = with_final_validation(results)
    table, metric = compare(runs, baseline), order_metric(runs)
    tasks = task_page(results, baseline)
    series = table["model"].where(table["task"].notna(), table["label"])  # what figures draw
    styles = series_styles(zip(series, table["color"], strict=True))
    table = table.assign(series=series, dot=[styles[one].color for one in series])
    shown = draw_figures(results, figures, workers)
    written = samples(results, list(table["label"]))
    detailed = _detailed(results)
    return Content(
        title=summary.title(results.runs),
        summary=summary.paragraph(results.runs, _models(table, tasks)),
        answers=answers(families(runs, metric, baseline), results.table("documents")),
        caveats=caveats(results),  # after tables and texts were read: their problems are known now
        metric=NAMES[metric],
        comparison=table,
        compared=_compared(table, metric),
        tasks=tasks,
        run_fields=run_fields(runs),
        figures=shown,
        samples=written,
        runs=detailed,
        speeds=conditions(results.runs),
        layouts=layouts(results.of_text),
        machines=summary.machines(results.runs),
        versions=summary.versions(results.runs),
        missing=summary.missing(results.runs, shown),
    )


def _models(table: pd.DataFrame, tasks: TaskPage) -> pd.Series:
    """Return the models' names: of tasks alone, once for all of them."""
    return tasks.rows["label"] if len(tasks.rows) and table["task"].notna().all() else table["label"]


def _compared(table: pd.DataFrame, metric: str) -> list[Compared]:
    of_task = table["task"].notna()
    parts = [(of_tasks, table[of_task == of_tasks]) for of_tasks in (False, True)]
    parts = [(of_tasks, rows) for of_tasks, rows in parts if len(rows)]
    return [
        Compared(
            "comparison" if place == 0 else "comparison_tasks", of_tasks, comparison(metric, of_tasks), rows
        )
        for place, (of_tasks, rows) in enumerate(parts)
    ]


def _detailed(results: Results) -> pd.DataFrame:
    runs = results.runs
    return runs.assign(
        anchor=[f"run-{place}" for place in range(1, len(runs) + 1)],
        config=pd.Series(results.texts("config.yaml"), index=runs.index, dtype="object"),
        probes=pd.Series(records(results), index=runs.index, dtype="object"),
        described=runs["blocks"].map(summary.blocks),
    )
