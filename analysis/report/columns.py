"""Columns of a report's tables, for HTML, Markdown and LaTeX alike: comparison, runs, synthetic tasks, layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from analysis import files
from analysis.comparing.equal_terms import MARKS, MATCHED, marked
from analysis.comparing.tables import (
    AHEAD,
    BASELINE,
    BEHIND,
    BETTER,
    FINAL,
    TIED,
    UNKNOWN,
    WORSE,
    compare,
    interval_text,
    model_order,
    task_table,
)
from analysis.comparing.verdicts import (
    LEVELS,
    accuracy_text,
    difference_text,
    levels_by_task,
    levels_text,
    rank_text,
)
from analysis.figures import layout_ranking, load_balance
from analysis.files import NoData, listing
from analysis.loading.columns import option_names
from analysis.loading.results import Results
from analysis.plotting.style import split_text, table_styles
from analysis.statistics import estimate

# Named layouts, the two tables of the HyperGraph report: quality, and balance of the routers.

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
    frame = pd.DataFrame(means, columns=["label", "imbalance", "imbalance_ci"])
    table = quality[["label", *_SCORES]].merge(frame, on="label")
    table = table.sort_values(["imbalance", "test_loss"], ignore_index=True)
    return table.assign(notes=[_notes(row, table) for row in table.itertuples()])


def _notes(row: tuple, table: pd.DataFrame) -> str:
    best = {"balance": "imbalance", "test loss": "test_loss"}
    notes = [what for what, column in best.items() if getattr(row, column) == table[column].min()]
    return f"best {listing(notes)}" if notes else ""


# Columns of the comparison and of the table of runs.


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


def text(value: Any, missing: str = files.MISSING) -> str:
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
        return files.MISSING
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
        f"{what} {files.deviation(getattr(row, name))}"
        for name, what in names.items()
        if MARKS[name] in row.marks
    ]
    if pd.isna(row.matched_with):
        return files.MISSING
    return ", ".join(off) or ("reference" if row.matched_with == row.label else "yes")


COMPARISON = (
    Field("name", lambda row: marked(row.label, row.marks), kind="name"),
    Field(
        "rank", rank_text, "", "rank_best", "number", "places that it may hold, every pair of models compared"
    ),
    Field(
        "difference",
        difference_text,
        "from the baseline",
        "difference",
        "number",
        "of mean losses; negative is better; all intervals hold jointly with 95 % confidence",
    ),
    _number("p", "difference_p", _probability, note="of the difference, corrected for the number of models"),
    _text("pattern", "pattern", "code"),
    _number("params", "parameters", files.engineering, note="parameters, tied ones counted once"),
    _number("beside embedding", "parameters_non_embedding", files.engineering, "params"),
    Field(
        "matched",
        _matched,
        note=f"within {MATCHED:.0%}: parameters beside the embedding, FLOPs, decode state",
    ),
    _number("FLOPs/token", "flops_forward", files.engineering, note="forward pass at the trained context"),
    _interval("test loss", "test_loss", "nats/token"),
    _number("ppl", "test_perplexity", files.number, "per token"),
    _number("word ppl", "test_word_perplexity", files.number),
    _interval("bits per byte", "test_bits_per_byte"),
    _number("best step", "best_step", files.whole),
    _number("learning rate", "lr", "{:g}".format),
    _number("tokens/s", "tokens_per_second", files.engineering, note=BESIDE),
    _number("MFU", "mfu", files.percent, note=f"share of the peak FLOP/s; {BESIDE}"),
    _number("peak memory", "peak_memory_bytes", files.memory),
    _text("seeds", "seeds"),
)
"""One row a model: analysis.comparing.tables.compare."""

_QUALITY = slice(9, 13)
"""Place of the columns of losses and perplexities in COMPARISON."""

TASK_COMPARISON = (
    *COMPARISON[:2],
    replace(
        COMPARISON[2],
        note="of mean accuracies; positive is better; all intervals of a task hold jointly with 95 % confidence",
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
        "chance",
        "chance",
        "{:.3f}".format,
        note="share of right answers from the position and the current token alone",
    ),
    _number(
        "copying",
        "shortcut",
        _share,
        note="share of right answers by copying from a fixed place, distance or order, without reading a key",
    ),
    _number(
        "memory",
        "memorised",
        _share,
        note="share of right answers by memorising all beginnings seen in as much training, without the rule",
    ),
    _interval("test loss", "test_loss", "nats/answer"),
    *COMPARISON[_QUALITY.stop :],
)
"""One row a model and synthetic task: analysis.comparing.tables.compare."""

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


def brief(metric: str, of_tasks: bool = False) -> tuple[Field, ...]:
    """Return the columns that a report shows first: name, score, difference, rank, parameters and learning rate."""
    score = "test_accuracy" if of_tasks and metric != FINAL else metric
    fields = {field.sort or field.heading: field for field in comparison(metric, of_tasks)}
    names = ("name", score, "difference", "rank_best", "parameters", "lr")
    return tuple(fields[name] for name in names)


QUALITY = (
    _text("model", "layout", "name"),
    _text("pattern", "pattern", "code"),
    _interval("val loss", "validation_loss", "nats/token"),
    _interval("test loss", "test_loss", "nats/token"),
    _number("test ppl", "test_perplexity", files.number, "per token"),
    _number("best step", "best_step", files.whole),
)
"""One row a layout: analysis.report.columns."""

BALANCE = (
    _text("model", "layout", "name"),
    _text("pattern", "pattern", "code"),
    _interval("avg imbalance", "imbalance", "×"),
    _interval("test loss", "test_loss", "nats/token"),
    _number("test ppl", "test_perplexity", files.number, "per token"),
    _text("notes", "notes"),
)
"""One row a layout with a router: analysis.report.columns."""

RUNS = (
    _text("name", "label", "name"),
    _number("seed", "seed", files.whole),
    _text("run", "run", "run"),
    _number("validation loss", "validation_loss", files.number),
    _number("test loss", "test_loss", files.number),
    _number("test ppl", "test_perplexity", files.number),
    _number("best step", "best_step", files.whole),
    _number("steps", "steps", files.whole),
    _text("stopped", "stopped"),
    _number("tokens", "tokens", files.engineering),
    _number("time", "seconds", files.duration),
    _number("tokens/s", "tokens_per_second", files.engineering),
    _number("peak memory", "peak_memory_bytes", files.memory),
    _text("commit", "commit", "code", _commit),
    _text("finished", "finished", show=_minute),
)
"""One row a run: Results.runs."""


def run_fields(runs: pd.DataFrame) -> tuple[Field, ...]:
    """Return RUNS and the configuration keys that differ; of synthetic tasks right answers, no perplexity of text."""
    of_task = runs["task"].notna()
    swept = tuple(_swept(runs, key) for key in option_names(runs))
    if not of_task.any():
        return (*RUNS, *swept)
    place = next(place for place, field in enumerate(RUNS) if field.sort == "test_perplexity")
    accuracy = _number("test accuracy", "test_accuracy", files.number)
    return (*RUNS[:place], accuracy, *RUNS[place + of_task.all() :], *swept)


def _swept(runs: pd.DataFrame, key: str) -> Field:
    place = runs.columns.get_loc(key)  # a named tuple has no attribute of a name with a dot
    return Field(key, lambda row: text(row[place]))


HARNESS = (
    _text("model", "label", "name"),
    _text("task", "task"),
    _text("metric", "metric"),
    _interval("value", "value"),
    _number(
        "standard error", "stderr", files.number, note="over the task's documents, as the harness gives it"
    ),
    _number("documents", "samples", files.whole),
    _number("seeds", "seeds", files.whole),
)
"""One row a model, task and metric: `harness`."""


def harness(results: Results) -> pd.DataFrame:
    """Return scores on tasks of the lm-evaluation-harness, means over seeds with their intervals; empty without any."""
    scores = results.table("lm_eval")
    if scores.empty:
        return pd.DataFrame()
    plain = scores["filter"].eq("none")
    scores = scores.assign(
        metric=scores["metric"].where(plain, scores["metric"] + " (" + scores["filter"] + ")")
    )
    rows = []
    for (label, task, metric), cells in scores.groupby(["label", "task", "metric"], sort=False):
        value, error = estimate(cells["value"]), estimate(cells["stderr"])
        counted = {"samples": int(cells["samples"].max()), "seeds": cells["run"].nunique()}
        values = {"value": value.mean, "value_ci": value.half_width, "stderr": error.mean}
        rows.append({"label": label, "task": task, "metric": metric, **values, **counted})
    return pd.DataFrame(rows).sort_values(["task", "metric"], kind="stable", ignore_index=True)


MACHINES = (
    _text("GPU", "gpu", show=partial(text, missing="none")),
    _text("processor", "cpu"),
    _number("cores", "cores", files.whole),
    _text("instructions", "capability", show=partial(text, missing="not recorded")),
    _number("threads a run", "threads", files.whole),
    _number("runs at a time", "workers", files.whole),
    _number("memory", "memory_bytes", files.memory),
    _text("system", "platform", "wrap"),
    _number("runs", "n_runs", files.whole),
)
"""One row a machine: analysis.report.content.machines."""

VERSIONS = (
    _text("commit", "commit", "code", partial(text, missing="not recorded")),
    _text("working tree", "tree"),
    _text("versions", "versions", "wrap"),
    _number("runs", "n_runs", files.whole),
)
"""One row a state of the code: analysis.report.content.versions."""


def rows(frame: pd.DataFrame) -> list:
    """Return the rows of a table as named tuples, for Field.show."""
    return list(frame.itertuples(index=False))


def sort_key(field: Field, row: Any) -> str:
    """Return the sort key of a cell: the number at full precision, "" where it is missing."""
    value = getattr(row, field.sort)
    return "" if pd.isna(value) else repr(float(value))


# The table of synthetic tasks: a row a model, a column a task.

_COUNTED = {
    BETTER: "better on",
    WORSE: "worse on",
    AHEAD: "ahead (a lead) on",
    BEHIND: "behind (a lead) on",
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
        fields.append(Field("against the baseline", lambda row: row.beside))
    return TaskPage(tuple(fields), pd.DataFrame(rows), _note(long), long)


def _means(table: pd.DataFrame) -> pd.DataFrame:
    """A row per model and task, in the order of the models."""
    names = ["model", "task", *LEVELS, "rank_best", "rank_worst", "baseline", "difference"]
    names += ["difference_ci", "shown", "why", "training_set"]
    means = []
    for _, rows in table.groupby(["model", "task"], sort=False):
        mean, half_width, n = estimate(rows["accuracy"])
        scores = {"accuracy": mean, "accuracy_ci": half_width, "n_seeds": n}
        means.append({**rows[names].iloc[0].to_dict(), **scores})
    return pd.DataFrame(means)


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
    counted = [f"{words} {counts[shown]}" for shown, words in _COUNTED.items() if shown in counts]
    return ", ".join(counted) or BASELINE


def _field(place: int, task: str, levels: str) -> Field:
    return Field(task, lambda row: getattr(row, f"cell_{place}"), levels, f"mean_{place}", "number")


def _note(long: pd.DataFrame) -> str:
    names = listing(long["baseline"].dropna().unique(), 20)
    text = (
        "Share of right answers on the test split, mean over seeds ± 95 % interval (Student t; none with one seed), "
        "each model at its best learning rate. In brackets: the places that it may hold on that task, every pair of "
        "models compared. "
    )
    if long["baseline"].notna().any():
        text += (
            f"Better and worse: than {names}, where the interval of the difference excludes zero. Ahead and behind: a "
            "lead, not a verdict; the answer says why. No word: not shown to differ. "
        )
    if long["task"].nunique() > 1:
        text += (
            "Tasks are never averaged. Intervals and places hold jointly within one task; over several tasks, more "
            "than one study in twenty has a wrong one."
        )
    return text.rstrip()
