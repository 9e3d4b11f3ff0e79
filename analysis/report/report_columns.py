"""Columns of a report's two tables, shared by the HTML, Markdown and LaTeX formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from analysis import units
from analysis.comparing.answer import accuracy_text, difference_text, rank_text
from analysis.comparing.comparison_table import FINAL, interval_text
from analysis.comparing.matching import MARKS, MATCHED, marked


@dataclass(frozen=True)
class Field:
    """A column of a report table.

    show(row): the cell's text; row: a named tuple of the table. sort: the frame's column that the page sorts by;
    empty: by the text. kind: "name" (a row's heading), "number" (to the right), "code", "run" (links to the run's
    config), or "text". note: what hovering over the heading says.
    """

    heading: str
    show: Callable[[Any], str]
    unit: str = ""
    sort: str = ""
    kind: str = "text"
    note: str = ""


def text(value: Any, missing: str = units.MISSING) -> str:
    """Format a value as it is, a missing one as "–"."""
    return missing if pd.isna(value) else str(value)


def _text(heading: str, column: str, kind: str = "text", show: Callable[[Any], str] = text) -> Field:
    return Field(heading, lambda row: show(getattr(row, column)), kind=kind)


def _number(heading: str, column: str, show: Callable[[Any], str], unit: str = "", note: str = "") -> Field:
    return Field(heading, lambda row: show(getattr(row, column)), unit, column, "number", note)


def _interval(heading: str, column: str, unit: str = "") -> Field:
    def show(row: Any) -> str:
        return interval_text(getattr(row, column), getattr(row, f"{column}_ci"))

    return Field(heading, show, unit, column, "number")


def _share(value: float) -> str:
    return text(value) if pd.isna(value) else f"{value:.3f}"


def _probability(value: Any) -> str:
    if pd.isna(value):
        return units.MISSING
    return "<0.001" if value < 0.001 else f"{value:.{3 if value < 0.1 else 2}f}"


def _minute(value: Any) -> str:
    return text(value)[:16].replace("T", " ")


def _commit(value: Any) -> str:
    return text(value)[:10]


BESIDE = "beside how many other runs says the line under the heading"


def _matched(row: Any) -> str:
    """Format the relative differences from the model of comparison that exceed the limit."""
    names = {"parameters_off": "params", "flops_off": "FLOPs", "state_off": "state"}
    off = [
        f"{what} {units.deviation(getattr(row, name))}"
        for name, what in names.items()
        if MARKS[name] in row.marks
    ]
    if pd.isna(row.matched_with):
        return units.MISSING
    return ", ".join(off) or ("reference" if row.matched_with == row.label else "yes")


COMPARISON = (
    Field("name", lambda row: marked(row.label, row.marks), kind="name"),
    Field("rank", rank_text, "", "rank_best", "number", "places it may have, every pair of models compared"),
    Field(
        "difference",
        difference_text,
        "from the baseline",
        "difference",
        "number",
        "of mean losses, negative: better; all intervals together hold the truth with 95 %",
    ),
    _number("p", "difference_p", _probability, note="of the difference, corrected for the number of models"),
    _text("pattern", "pattern", "code"),
    _number("params", "parameters", units.engineering, note="parameters, tied ones once"),
    _number("beside embedding", "parameters_non_embedding", units.engineering, "params"),
    Field(
        "matched",
        _matched,
        note=f"within {MATCHED:.0%}: parameters beside the embedding, FLOPs, decode state",
    ),
    _number("FLOPs/token", "flops_forward", units.engineering, note="forward pass at the trained context"),
    _interval("test loss", "test_loss", "nats/token"),
    _number("ppl", "test_perplexity", units.number, "per token"),
    _number("word ppl", "test_word_perplexity", units.number),
    _interval("bits per byte", "test_bits_per_byte"),
    _number("best step", "best_step", units.whole),
    _number("tokens/s", "tokens_per_second", units.engineering, note=BESIDE),
    _number("MFU", "mfu", units.percent, note=f"share of the peak FLOP/s; {BESIDE}"),
    _number("peak memory", "peak_memory_bytes", units.memory),
    _text("seeds", "seeds"),
)
"""One row a model: analysis.comparing.comparison_table.compare."""

_QUALITY = slice(9, 13)
"""Place of the columns of losses and perplexities in COMPARISON."""

TASK_COMPARISON = (
    *COMPARISON[:2],
    replace(
        COMPARISON[2],
        note="of mean accuracies, positive: better; all intervals of a task together hold the truth with 95 %",
    ),
    *COMPARISON[3 : _QUALITY.start],
    Field(
        "right answers",
        lambda row: accuracy_text(row.test_accuracy, row.test_accuracy_ci),
        "share",
        "test_accuracy",
        "number",
    ),
    Field(
        "sequences all right",
        lambda row: accuracy_text(row.test_sequence_accuracy, row.test_sequence_accuracy_ci),
        "share",
        "test_sequence_accuracy",
        "number",
    ),
    _number(
        "chance", "chance", "{:.3f}".format, note="share of right answers by place and token at hand alone"
    ),
    _number(
        "copying",
        "shortcut",
        _share,
        note="share of right answers by copying from a fixed place, distance or order, no key read",
    ),
    _number(
        "memory",
        "memorised",
        _share,
        note="share of right answers by a memory of all beginnings that as much training shows, no rule known",
    ),
    _interval("test loss", "test_loss", "nats/answer"),
    *COMPARISON[_QUALITY.stop :],
)
"""One row a model and synthetic task: analysis.comparing.comparison_table.compare."""

FINAL_VALIDATION = _interval("final validation loss", FINAL, "nats/token")


def comparison(metric: str, of_tasks: bool = False) -> tuple[Field, ...]:
    """Return the comparison's columns for text or tasks, with the final validation loss where no test was scored."""
    fields = TASK_COMPARISON if of_tasks else COMPARISON
    if metric != FINAL:
        return fields
    first = next(place for place, field in enumerate(fields) if field.sort.startswith("test_"))
    kept = [field for field in fields if not field.sort.startswith("test_")]
    final = replace(FINAL_VALIDATION, unit="nats/answer") if of_tasks else FINAL_VALIDATION
    return (*kept[:first], final, *kept[first:])


QUALITY = (
    _text("model", "layout", "name"),
    _text("pattern", "pattern", "code"),
    _interval("val loss", "validation_loss", "nats/token"),
    _interval("test loss", "test_loss", "nats/token"),
    _number("test ppl", "test_perplexity", units.number, "per token"),
    _number("best step", "best_step", units.whole),
)
"""One row a layout: analysis.report.layouts."""

BALANCE = (
    _text("model", "layout", "name"),
    _text("pattern", "pattern", "code"),
    _interval("avg imbalance", "imbalance", "×"),
    _interval("test loss", "test_loss", "nats/token"),
    _number("test ppl", "test_perplexity", units.number, "per token"),
    _text("notes", "notes"),
)
"""One row a layout with a router: analysis.report.layouts."""

RUNS = (
    _text("name", "label", "name"),
    _number("seed", "seed", units.whole),
    _text("run", "run", "run"),
    _number("validation loss", "validation_loss", units.number),
    _number("test loss", "test_loss", units.number),
    _number("test ppl", "test_perplexity", units.number),
    _number("best step", "best_step", units.whole),
    _number("steps", "steps", units.whole),
    _text("stopped", "stopped"),
    _number("tokens", "tokens", units.engineering),
    _number("time", "seconds", units.duration),
    _number("tokens/s", "tokens_per_second", units.engineering),
    _number("peak memory", "peak_memory_bytes", units.memory),
    _text("commit", "commit", "code", _commit),
    _text("finished", "finished", show=_minute),
)
"""One row a run: Results.runs."""


def run_fields(runs: pd.DataFrame) -> tuple[Field, ...]:
    """Return RUNS, with right answers where runs are of synthetic tasks, and without perplexity where all are."""
    of_task = runs["task"].notna()
    if not of_task.any():
        return RUNS
    place = next(place for place, field in enumerate(RUNS) if field.sort == "test_perplexity")
    accuracy = _number("test accuracy", "test_accuracy", units.number)
    return (*RUNS[:place], accuracy, *RUNS[place + of_task.all() :])


MACHINES = (
    _text("GPU", "gpu", show=partial(text, missing="none")),
    _text("processor", "cpu"),
    _number("cores", "cores", units.whole),
    _text("instructions", "capability", show=partial(text, missing="not recorded")),
    _number("threads a run", "threads", units.whole),
    _number("runs at a time", "workers", units.whole),
    _number("memory", "memory_bytes", units.memory),
    _text("system", "platform", "wrap"),
    _number("runs", "n_runs", units.whole),
)
"""One row a machine: analysis.report.summary.machines."""

VERSIONS = (
    _text("commit", "commit", "code", partial(text, missing="not recorded")),
    _text("working tree", "tree"),
    _text("versions", "versions", "wrap"),
    _number("runs", "n_runs", units.whole),
)
"""One row a state of the code: analysis.report.summary.versions."""


def rows(frame: pd.DataFrame) -> list:
    """Return the rows of a table as named tuples, for Field.show."""
    return list(frame.itertuples(index=False))


def sort_key(field: Field, row: Any) -> str:
    """Return the sort key of a cell: the number at full precision, "" where it is missing."""
    value = getattr(row, field.sort)
    return "" if pd.isna(value) else repr(float(value))
