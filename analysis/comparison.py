"""The comparison table: one row per model with means and intervals over seeds, best model first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.loading.results import Results
from analysis.matching import deviations
from analysis.statistics import estimate
from analysis.units import engineering, number, visible

ESTIMATED = (
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

NAMES = {"test_loss": "test loss", "test_bits_per_byte": "bits per byte", FINAL: "final validation loss"}

SHARED = (
    "name",
    "preset",
    "pattern",
    "residual",
    "channel",
    "color",
    "lr",
    "parameters",
    "parameters_non_embedding",
    "unigram_entropy",
    "flops_forward",
    "flops_training",
)
"""Equal for all seeds of a setting."""


def unique_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Drop repeated (setting, seed) pairs: a run found in two experiments is one sample, not two."""
    return runs.drop_duplicates(["setting", "seed"])


def ranking_metric(runs: pd.DataFrame) -> str:
    """Return "test_loss", or "test_bits_per_byte" where tokenizers differ and losses per token do not compare."""
    one_tokenizer = runs[["tokenizer", "vocab_size"]].drop_duplicates().shape[0] == 1
    return "test_loss" if one_tokenizer else "test_bits_per_byte"


def with_final_validation(results: Results) -> pd.DataFrame:
    """Add the column final_validation_loss to the runs: the last validation loss in their metrics."""
    rows = results.metrics
    rows = rows[(rows["split"] == "validation") & rows["loss"].notna()].sort_values("step", kind="stable")
    last = rows.groupby(["experiment", "run"])["loss"].last().rename(FINAL)
    return results.runs.join(last, on=["experiment", "run"])


def order_metric(runs: pd.DataFrame) -> str:
    """Return the metric that orders the models: `ranking_metric`, or FINAL where no run was tested at all."""
    metric = ranking_metric(runs)
    return metric if runs[metric].notna().any() or FINAL not in runs else FINAL


def scored(runs: pd.DataFrame) -> pd.DataFrame:
    """Select the runs that have the metric that orders the models; all runs if none has it."""
    known = runs[order_metric(runs)].notna()
    return runs[known] if known.any() else runs


def compare(runs: pd.DataFrame) -> pd.DataFrame:
    """Make the comparison table: one row per label, best first by `order_metric`.

    Columns: label, SHARED, ESTIMATED each with ``_ci``, workers and peak_memory_bytes (the highest), n_seeds and
    seeds (those `scored`), and those of `analysis.matching.deviations`.
    runs: Results.runs, or `with_final_validation`.
    """
    known = set(scored(runs).index)
    rows = [
        _summarise(label, group, group.index.isin(known))
        for label, group in unique_seeds(runs).groupby("label", sort=False)
    ]
    table = pd.DataFrame(rows).join(deviations(runs), on="label")
    return table.sort_values([order_metric(runs), "label"], ignore_index=True)


def _summarise(label: str, group: pd.DataFrame, known: Sequence[bool]) -> dict:
    group = group if FINAL in group else group.assign(**{FINAL: math.nan})
    row = {"label": label, **{name: group[name].iloc[0] for name in SHARED}}
    for name in ESTIMATED:
        row[name], row[f"{name}_ci"], _ = estimate(group[name].astype("float64"))
    row["workers"] = group["workers"].max()
    row["peak_memory_bytes"] = group["peak_memory_bytes"].max()
    row["n_seeds"] = int(sum(known))
    row["seeds"] = ", ".join(str(seed) for seed in sorted(group.loc[known, "seed"].dropna())) or None
    return row


def interval_text(mean: float, half_width: float) -> str:
    """Format a mean and its interval as "2.9564 ± 0.0031"; without an interval the mean alone."""
    if math.isnan(half_width):
        return number(mean)
    digits = 4 if half_width == 0 else max(1, min(4, 1 - math.floor(math.log10(half_width))))
    return f"{mean:,.{digits}f} ± {half_width:,.{digits}f}"


def comparison_text(results: Results) -> str:
    """Format the comparison as an aligned plain-text table, best model first, one line per model."""
    runs = with_final_validation(results)
    table, loss = compare(runs), FINAL if order_metric(runs) == FINAL else "test_loss"
    head = ("#", "name", "pattern", "params", NAMES[loss], "word ppl", "bits/byte", "tokens/s", "seeds")
    lines = [head] + [
        (
            str(rank),
            visible(row.label),
            visible(row.pattern),
            engineering(row.parameters),
            interval_text(getattr(row, loss), getattr(row, f"{loss}_ci")),
            number(row.test_word_perplexity),
            number(row.test_bits_per_byte),
            engineering(row.tokens_per_second),
            str(row.n_seeds),
        )
        for rank, row in enumerate(table.itertuples(index=False), start=1)
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
    return "\n".join(aligned) + "\n" + _footnote(table)


def _footnote(table: pd.DataFrame) -> str:
    none = table.loc[table["n_seeds"] == 0, "label"]
    without = f"; not scored: {', '.join(none)}" if len(none) else ""
    if (table["n_seeds"] <= 1).all():
        return "one seed: no interval" + without
    alone = table.loc[table["n_seeds"] == 1, "label"]
    note = "±: 95 % confidence interval over seeds (Student t)"
    return note + (f"; one seed: no interval: {', '.join(alone)}" if len(alone) else "") + without
