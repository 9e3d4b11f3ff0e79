"""Findings from the runs of a verdict: the block's losses beside those of the transformer and of its relative."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.block_verdict.findings import BETTER, EQUAL, LEAD, UNLEARNED, WORSE, Finding
from analysis.block_verdict.verdict_tables import VerdictTables
from analysis.comparing.answer import UNITS, accuracy_text, difference_text
from analysis.comparing.comparison_table import NAMES, order_metric, with_final_validation
from analysis.comparing.learned_tasks import LEARNED, accuracies, any_learned
from analysis.comparing.task_levels import known_levels, levels_text
from analysis.comparing.verdicts import WRONG, Family, families
from analysis.loading.rate_sweeps import at_best_rates
from analysis.loading.results import Results
from analysis.loading.tasks import architectures
from analysis.significance.intervals import estimate

TESTS = (
    "On a text or task the intervals of all models' differences from one of them hold together (Dunnett's test, or "
    "Welch's with Bonferroni's correction). \"Better than every other model\" in the comparison of all is another "
    "test, every pair of models by Holm's correction: either may show a difference that the other does not."
)
"""By which test losses and accuracies differ on this page, and why a comparison may say otherwise of a pair."""


def learned_findings(tables: VerdictTables, results: Results) -> Iterator[Finding]:
    """Yield a finding for every peer and every text or task: better or worse where the interval does not hold zero.

    Of a task that neither has learned it is neither, whatever the interval: places, and words that training showed,
    answer some questions without the rule.
    """
    runs = with_final_validation(results)
    metric, chosen = order_metric(runs), at_best_rates(runs)
    for peer in tables.peers:
        baseline = model_in_runs(chosen, tables.record["models"][peer])
        own = model_in_runs(chosen, tables.record["models"][tables.name])
        if baseline is None or own is None:
            continue
        for family in families(runs, metric, baseline):
            row = family.table[family.table["model"] == own]
            if len(row) and family.baseline is not None:
                yield _finding(family, row.iloc[0], tables.name, peer)


def model_in_runs(runs: pd.DataFrame, model: dict[str, Any]) -> str | None:
    """The name of a recorded model in the runs, without rates; None where it has no run."""
    same = (
        (runs["pattern"].map(set).map(lambda letters: letters == set(model["pattern"])))
        & (runs["residual"] == model["residual"]["name"])
        & (runs["channel"] == model["channel"]["name"])
    )
    return runs.loc[same, "model"].iloc[0] if same.any() else None


def _finding(family: Family, row: pd.Series, block: str, peer: str) -> Finding:
    """The finding of a row of a family's table, whose baseline is the peer."""
    told = f"{_difference_sentence(family, row, block, peer)}{_interval(family, row, peer)}"
    if family.metric != WRONG:
        return Finding(_side(row), peer, f"{told}: {_judged(row, peer)}.")
    if accuracies(family.runs)[[row.name, family.baseline]].max() < LEARNED:
        why = _unlearned(family, {row.name: block, family.baseline: peer})
        return Finding(UNLEARNED, peer, f"{told}: tells little, as {why}.")
    return Finding(_side(row), peer, f"{told}: {_judged(row, peer)}{_both_learned(family, row)}.")


def _side(row: pd.Series) -> str:
    """The side of a difference: EQUAL unless its interval is without zero."""
    if pd.isna(row["difference_ci"]) or row["difference_p"] >= 0.05:
        return EQUAL
    return LEAD if row["lead"] else BETTER if row["difference"] < 0 else WORSE


def _judged(row: pd.Series, peer: str) -> str:
    """Return the conclusion from a difference and its interval: "better than transformer"."""
    if pd.isna(row["difference_ci"]):
        return "too few seeds, or none that differ, for an interval of the difference"
    side = _side(row)
    if side == LEAD:
        return f"{'ahead of' if row['difference'] < 0 else 'behind'} {peer}, but {row['lead']}"
    verb = {BETTER: "better than", WORSE: "worse than", EQUAL: "not shown to differ from"}[side]
    return f"{verb} {peer}"


def _unlearned(family: Family, names: dict[str, str]) -> str:
    """That neither has learned the task, and which model has the most right answers; names: of the two, by label."""
    best = accuracies(family.runs).index[0]
    name = names.get(best) or architectures(family.runs[family.runs["label"] == best]).iloc[0]
    who = "neither" if any_learned(family.runs) else "no model"
    return f"{who} has {LEARNED:.0%} right on average (the best, {name}: {_accuracy(family, best)})"


def _both_learned(family: Family, row: pd.Series) -> str:
    """That both have learned the task, where they have; else ""."""
    if accuracies(family.runs)[[row.name, family.baseline]].min() < LEARNED:
        return ""
    return f"; both learned it ({LEARNED:.0%} right or more), so that only a harder task could tell more"


def _accuracy(family: Family, label: str) -> str:
    """A model's share of right answers with its interval over seeds, as the tables have it."""
    mean, half_width, _ = estimate(family.runs.loc[family.runs["label"] == label, "test_accuracy"])
    return accuracy_text(mean, half_width)


def _difference_sentence(family: Family, row: pd.Series, block: str, peer: str) -> str:
    """The difference in words: "Test loss on pydocs: −0.03 ± 0.02 nats/token"; of a task accuracies and theirs."""
    of_task = family.metric == WRONG
    signed = row.mask(row.index == "difference", -row["difference"]) if of_task else row
    (shown,) = pd.DataFrame([signed]).rename_axis("label").reset_index().itertuples()
    if of_task:
        return (
            f"Accuracy on {family.task}: {block} {_accuracy(family, row.name)}, {peer} "
            f"{_accuracy(family, family.baseline)}, {levels_text(known_levels(family.runs))}; "
            f"difference {difference_text(shown)}"
        )
    text = family.task or family.runs["test_set"].iloc[0]
    unit = UNITS.get(family.metric, "nats/token")
    return f"{NAMES[family.metric].capitalize()} on {text}: {difference_text(shown)} {unit}"


def _interval(family: Family, row: pd.Series, peer: str) -> str:
    """Return the words for the number behind "±" of a difference; where it has none, those for the other model."""
    if pd.isna(row["difference_ci"]):
        return f" beside {peer}"
    return ", 95 % intervals" if family.metric == WRONG else ", 95 % interval"
