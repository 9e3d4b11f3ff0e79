"""A report over any number of runs: one self-contained HTML page, the same as Markdown, and its tables.

content.py   the content of a report, gathered once: its sentences, figures, and continuations side by side
columns.py   the columns of its tables: comparison, runs, synthetic tasks, named layouts
page.py      content -> index.html;  markdown.py: -> report.md;  latex.py: -> tables/*.tex
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from analysis.comparing.tables import compare, with_final_validation
from analysis.files import ResultsError, refuse_link, remove_partials, write_csv, write_text
from analysis.loading.results import PathLike, Results, load_results
from analysis.report import latex, markdown, page
from analysis.report.columns import BALANCE, HARNESS, QUALITY, rows
from analysis.report.content import Content, gather


def write_report(
    runs: PathLike | Iterable[PathLike] | Results,
    out: PathLike | None = None,
    *,
    workers: int = 1,
    baseline: str | None = None,
) -> Path:
    """Write a report and return the path of its page.

    index.html needs no other file and no network. Its folder also gets report.md with figures/NAME.svg, .png and .csv
    (the data drawn); tables/ with comparison and runs, of synthetic tasks tasks (models x tasks), and of two named
    layouts or more quality and balance, as .tex (booktabs) and .csv (full precision), and samples.csv where there are
    samples; runs.parquet and metrics.parquet. Above gallery.MOST settings figures draw a selection of models, as .svg
    and .csv.gz alone, the page has their runs, and tables/runs.csv.gz has all.

    runs: a run, experiment or results folder, a list of them, or loaded Results.
    out: the folder to write into, by default ``<runs>/report``; needed where runs is not one folder.
    workers: processes that draw figures; above 1 only from under ``if __name__ == "__main__"``.
    baseline: the label of the model that others are compared with, by default the plain transformer.
    Raises ResultsError if there is nothing complete to report, for a baseline that is not among the models, or where
    the folder cannot be written; it may be a link only where ``out`` names it. Partial files of a killed report are
    deleted.
    """
    folder = _target(runs.places[0] if isinstance(runs, Results) and len(runs.places) == 1 else runs, out)
    parts = (folder / "figures", folder / "tables")
    for place in parts if out is not None else (folder, *parts):
        refuse_link(place)
    results = runs if isinstance(runs, Results) else load_results(runs)
    if baseline is not None:  # a wrong one is refused before anything is written
        compare(with_final_validation(results), baseline)
    for place in (folder, *parts):
        _make(place)
        remove_partials(place)
    content = gather(results, folder / "figures", workers, baseline)
    results.to_parquet(folder, probes=False)
    _write_tables(results, content, folder / "tables")
    write_text(folder / "report.md", markdown.render(content))
    return write_text(folder / "index.html", page.render(content))


def _target(runs: object, out: PathLike | None) -> Path:
    if out is not None:
        return Path(out)
    if isinstance(runs, str | os.PathLike):
        return Path(runs) / "report"
    raise ResultsError("a report over several folders needs a place: give out=FOLDER")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        file = next((place for place in (folder, *folder.parents) if place.is_file()), folder)
        raise ResultsError(
            f"a report needs a folder, and {file} is a file; move or rename it, or write_report(runs, out=FOLDER)"
        ) from error
    except OSError as error:
        raise ResultsError(
            f"{folder} cannot be made ({error.strerror}); write_report(runs, out=FOLDER)"
        ) from error


def _write_tables(results: Results, content: Content, folder: Path) -> None:
    compared = {
        part.file: (part.rows.drop(columns=["series", "dot"]), part.fields) for part in content.compared
    }
    nothing: tuple[pd.DataFrame, tuple] = (pd.DataFrame(), ())
    for name, (frame, fields) in {
        "comparison": nothing,
        "comparison_tasks": nothing,
        **compared,
        "tasks": (content.tasks.rows, content.tasks.fields),
        "runs": (results.runs, content.run_fields),
        "quality": (content.layouts.quality, QUALITY),
        "balance": (content.layouts.balance, BALANCE),
        "lm_eval": (content.harness, HARNESS),
    }.items():
        if frame.empty:  # there may be one of an earlier report
            for suffix in (".csv", ".csv.gz", ".tex"):
                (folder / f"{name}{suffix}").unlink(missing_ok=True)
            continue
        long = bool(content.selected) and name == "runs"
        write_csv(content.tasks.long if name == "tasks" else frame, folder / f"{name}.csv", small=long)
        if long:  # a table of hundreds of rows is for no paper
            (folder / f"{name}.tex").unlink(missing_ok=True)
            continue
        write_text(
            folder / f"{name}.tex",
            latex.table(fields, rows(frame), f"{content.summary} Speeds: {content.speeds}."),
        )
    if content.samples.prompts:
        write_csv(content.drawn.table("samples"), folder / "samples.csv")
