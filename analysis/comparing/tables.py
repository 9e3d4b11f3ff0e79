"""The tables of a comparison: one row a model, and, for synthetic tasks, one row a model and task."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis.comparing.equal_terms import deviations
from analysis.comparing.verdicts import (
    COLUMNS,
    LEVELS,
    WRONG,
    Family,
    accuracy_text,
    difference_text,
    families,
    rank_text,
)
from analysis.files import NoData, engineering, number, visible
from analysis.loading.probes import sweeps_as_models, with_selection
from analysis.loading.results import Results
from analysis.statistics import estimate

# The comparison table: one row a model with means and intervals over seeds, best model first.

ESTIMATED = (
    "test_accuracy",
    "test_sequence_accuracy",
    "test_loss",
    "test_perplexity",
    "test_word_perplexity",
    "test_bits_per_byte",
    "validation_loss",
    "final_validation_loss",
    "tokens_per_second",
    "mfu",
    "best_step",
)
"""Averaged over seeds; each has a column ``<name>_ci`` with the half width of its 95 % interval."""

FINAL = "final_validation_loss"
"""The metric that orders models when no run has a test loss: see `with_final_validation`."""

NAMES = {
    "test_loss": "test loss",
    "test_bits_per_byte": "bits per byte",
    WRONG: "share of wrong answers",
    FINAL: "final validation loss",
}

SHARED = (
    "model",
    "name",
    "preset",
    "pattern",
    "residual",
    "channel",
    "color",
    "task",
    "chance",
    "shortcut",
    "memorised",
    "lr",
    "parameters",
    "parameters_non_embedding",
    "unigram_entropy",
    "flops_forward",
    "flops_training",
)
"""Equal for all seeds of a setting."""


def ranking_metric(runs: pd.DataFrame) -> str:
    """Return "test_loss", or "test_bits_per_byte" where tokenizers differ and losses per token do not compare.

    Synthetic tasks have no bytes: those of several tasks are listed by the loss of their answers, too.
    """
    of_text = runs[runs["chance"].isna()]
    one_tokenizer = of_text[["tokenizer", "vocab_size"]].drop_duplicates().shape[0] <= 1
    return "test_loss" if one_tokenizer else "test_bits_per_byte"


def with_final_validation(results: Results) -> pd.DataFrame:
    """Add to the runs FINAL, the last validation loss in their metrics, and the columns of `with_selection`."""
    rows = results.metrics
    rows = rows[(rows["split"] == "validation") & rows["loss"].notna()].sort_values("step", kind="stable")
    last = rows.groupby(["experiment", "run"])["loss"].last().rename(FINAL)
    return with_selection(results).join(last, on=["experiment", "run"])


def order_metric(runs: pd.DataFrame) -> str:
    """Return the metric that orders the models: `ranking_metric`, or FINAL where no run was tested at all."""
    metric = ranking_metric(runs)
    return metric if runs[metric].notna().any() or FINAL not in runs else FINAL


def scored(runs: pd.DataFrame) -> pd.DataFrame:
    """Select the runs that have the metric that orders the models; all runs if none has it."""
    known = runs[order_metric(runs)].notna()
    return runs[known] if known.any() else runs


def compare(runs: pd.DataFrame, baseline: str | None = None) -> pd.DataFrame:
    """Make the comparison table: one row per label, best first by `order_metric`, those of a task by accuracy.

    Columns: label, SHARED, ESTIMATED each with ``_ci``, workers and peak_memory_bytes (the highest), n_seeds and
    seeds (those `scored`), those of `analysis.comparing.equal_terms.deviations` and of `analysis.comparing.verdicts`
    (empty for settings that are not a model's best learning rate). A difference is of the metric, negative: better; of
    tasks it is that of accuracies, positive: better.
    runs: Results.runs, or `with_final_validation`. baseline: see `analysis.comparing.verdicts.families`, which may
    raise.
    """
    rows = _summaries(sweeps_as_models(runs), scored(runs).index)
    tables = [_differences(family) for family in families(runs, order_metric(runs), baseline)]
    compared = pd.concat(tables or [pd.DataFrame(columns=list(COLUMNS))])
    table = rows.join(deviations(runs), on="label").join(compared, on="label")
    best = (-table["test_accuracy"]).fillna(table[order_metric(runs)])
    order = table.assign(best=best, task=table["task"].fillna("")).sort_values(["task", "best", "label"])
    return table.loc[order.index].reset_index(drop=True)


def _differences(family: Family) -> pd.DataFrame:
    """Return the verdicts' columns of each label; of tasks the difference is that of accuracies, positive: better."""
    table = family.table[list(COLUMNS)]
    return table.assign(difference=-table["difference"]) if family.metric == WRONG else table


def _summaries(runs: pd.DataFrame, known: pd.Index) -> pd.DataFrame:
    """A row a label: SHARED, and of ESTIMATED means and intervals; known: the runs that are `scored`."""
    runs = runs.reset_index(names="place")
    places = list(runs.groupby("label", sort=False).indices.values())
    first = runs.iloc[[place[0] for place in places]].reset_index(drop=True)
    found: dict[str, object] = {name: first[name].to_list() for name in ("label", *SHARED)}
    for name in ESTIMATED:
        values = (
            runs[name].to_numpy("float64", na_value=math.nan)
            if name in runs
            else np.full(len(runs), math.nan)
        )
        means = [estimate(values[place]) for place in places]
        found[name], found[f"{name}_ci"] = ([one[at] for one in means] for at in (0, 1))
    highest = runs.groupby("label", sort=False)[["workers", "peak_memory_bytes"]].max()
    counted = runs["place"].isin(known).to_numpy()
    seeds = runs["seed"].where(counted)
    told = [sorted(seeds.iloc[place].dropna()) for place in places]
    return pd.DataFrame(found).assign(
        **{name: highest[name].to_list() for name in highest},
        n_seeds=[int(counted[place].sum()) for place in places],
        seeds=[", ".join(map(str, each)) or None for each in told],
    )


def interval_text(mean: float, half_width: float) -> str:
    """Format a mean and its interval as "2.9564 ± 0.0031"; without an interval the mean alone."""
    if math.isnan(half_width):
        return number(mean)
    digits = 4 if half_width == 0 else max(1, min(4, 1 - math.floor(math.log10(half_width))))
    return f"{mean:,.{digits}f} ± {half_width:,.{digits}f}"


Cell = Callable[[tuple], str]
_FIRST: dict[str, Cell] = {
    "#": rank_text,
    "name": lambda row: visible(row.label),
    "pattern": lambda row: visible(row.pattern),
    "params": lambda row: engineering(row.parameters),
}
_LAST: dict[str, Cell] = {
    "tokens/s": lambda row: engineering(row.tokens_per_second),
    "seeds": lambda row: str(row.n_seeds),
}


def _columns(loss: str, of_tasks: bool) -> dict[str, Cell]:
    """The columns of a comparison by heading, of runs on text or on synthetic tasks."""

    def interval(name: str) -> Cell:
        return lambda row: interval_text(getattr(row, name), getattr(row, f"{name}_ci"))

    if of_tasks:
        middle = {
            "accuracy": lambda row: accuracy_text(row.test_accuracy, row.test_accuracy_ci),
            "difference": difference_text,
            "chance": lambda row: f"{row.chance:.3f}",
            "copying": lambda row: number(row.shortcut),
            "memory": lambda row: number(row.memorised),
            f"{NAMES[loss]} (nats/answer)": interval(loss),
        }
    else:
        middle = {
            NAMES[loss]: interval(loss),
            "difference": difference_text,
            "word ppl": lambda row: number(row.test_word_perplexity),
            "bits/byte": lambda row: number(row.test_bits_per_byte),
        }
    return _FIRST | middle | _LAST


def comparison_text(results: Results, baseline: str | None = None) -> str:
    """Format the comparison as aligned plain-text tables, of text and of synthetic tasks, best model first.

    #: the ranks that a model may have (`analysis.statistics.rank_ranges`). baseline: see `compare`.
    """
    runs = with_final_validation(results)
    table, loss = compare(runs, baseline), FINAL if order_metric(runs) == FINAL else "test_loss"
    parts = [(of_tasks, table[table["task"].notna() == of_tasks]) for of_tasks in (False, True)]
    lines = [
        f"{_aligned(rows, _columns(loss, of_tasks))}\n{_footnote(rows)}"
        for of_tasks, rows in parts
        if len(rows)
    ]
    return "\n\n".join(lines)


def _aligned(table: pd.DataFrame, columns: dict[str, Cell]) -> str:
    """A line for each row, columns aligned: names and patterns to the left, numbers to the right."""
    lines = [tuple(columns)] + [
        tuple(show(row) for show in columns.values()) for row in table.itertuples(index=False)
    ]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    left = {1, 2}
    aligned = (
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
    return "\n".join(aligned)


def _footnote(table: pd.DataFrame) -> str:
    none = table.loc[table["n_seeds"] == 0, "label"]
    without = f"; not scored: {', '.join(none)}" if len(none) else ""
    if (table["n_seeds"] <= 1).all():
        return "one seed: no interval" + without
    alone = table.loc[table["n_seeds"] == 1, "label"]
    note = "±: 95 % confidence interval over seeds (Student t)"
    if table["difference_ci"].notna().any():
        names = ", ".join(table["baseline"].dropna().unique())
        note += f"; of differences (from {names}): all together; #: ranks it may have"
    return note + (f"; one seed: no interval: {', '.join(alone)}" if len(alone) else "") + without


BETTER, WORSE, AHEAD, BEHIND, TIED, BASELINE, UNKNOWN = (
    *("better", "worse", "ahead, a lead", "behind, a lead"),
    *("not shown to differ", "baseline", "not compared"),
)
"""What is known of a model beside the baseline."""

# The table of synthetic tasks: right answers of every model on every task, and the shown differences.

TASK_COLUMNS = (
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
    of_tasks = [one for one in families(runs, order_metric(runs), baseline) if one.metric == WRONG]
    if not of_tasks:
        raise NoData("no run of a synthetic task was scored on its test split; add test to evaluate.splits")
    groups = dict.fromkeys((one.experiment, one.depth) for one in of_tasks)
    names = {
        group: ", ".join(
            [
                *([group[0]] if len({experiment for experiment, _ in groups}) > 1 else []),
                *([f"{group[1]} layers"] if len({depth for _, depth in groups}) > 1 else []),
            ]
        )
        for group in groups
    }
    rows = pd.concat([_rows(one, names[one.experiment, one.depth]) for one in of_tasks], ignore_index=True)
    return rows[list(TASK_COLUMNS)]


def _rows(family: Family, group: str) -> pd.DataFrame:
    table = family.table.assign(
        difference=-family.table["difference"],
        shown=[_conclusion(row) for row in family.table.itertuples()],
        why=family.table["lead"],
    )
    columns = ["rank_best", "rank_worst", "baseline", "difference", "difference_ci", "shown", "why"]
    rows = family.runs.assign(accuracy=1 - family.runs[WRONG]).join(table[columns], on="label")
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
