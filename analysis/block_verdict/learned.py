"""What the runs of a verdict say: the block's losses beside those of the transformer and of its relative."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.block_verdict.findings import BETTER, EQUAL, LEAD, WORSE, Finding
from analysis.block_verdict.measured import Measured
from analysis.comparing.answer import UNITS, difference_text
from analysis.comparing.comparison_table import NAMES, order_metric, with_final_validation
from analysis.comparing.verdicts import WRONG, Family, families
from analysis.loading.rate_sweeps import at_best_rates
from analysis.loading.results import Results


def learned_findings(measured: Measured, results: Results) -> Iterator[Finding]:
    """Yield a finding for every peer and every text or task: better or worse where the interval does not hold zero."""
    runs = with_final_validation(results)
    metric, chosen = order_metric(runs), at_best_rates(runs)
    for peer in measured.peers:
        baseline = _model(chosen, measured.record["models"][peer])
        own = _model(chosen, measured.record["models"][measured.name])
        if baseline is None or own is None:
            continue
        for family in families(runs, metric, baseline):
            row = family.table[family.table["model"] == own]
            if len(row) and family.baseline is not None:
                yield _finding(family, row.iloc[0], peer)


def _model(runs: pd.DataFrame, model: dict[str, Any]) -> str | None:
    """The name of a recorded model in the runs, without rates; None where it has no run."""
    same = (
        (runs["pattern"].map(set).map(lambda letters: letters == set(model["pattern"])))
        & (runs["residual"] == model["residual"]["name"])
        & (runs["channel"] == model["channel"]["name"])
    )
    return runs.loc[same, "model"].iloc[0] if same.any() else None


def _finding(family: Family, row: pd.Series, peer: str) -> Finding:
    told = _told(family, row)
    if pd.isna(row["difference_ci"]):
        return Finding(
            EQUAL, peer, f"{told} beside {peer}: too few seeds, or none that differ, to tell from chance."
        )
    shown = row["difference_p"] < 0.05
    side = EQUAL if not shown else BETTER if row["difference"] < 0 else WORSE
    verb = {BETTER: "better than", WORSE: "worse than", EQUAL: "not shown to differ from"}[side]
    if shown and row["lead"]:
        verb = "ahead of" if side == BETTER else "behind"
        return Finding(LEAD, peer, f"{told}, 95 % interval: {verb} {peer}, but {row['lead']}.")
    return Finding(side, peer, f"{told}, 95 % interval: {verb} {peer}.")


def _told(family: Family, row: pd.Series) -> str:
    """The difference in words: "Test loss on pydocs: −0.03 ± 0.02 nats/token"; of a task that of accuracies."""
    of_task = family.metric == WRONG
    signed = row.mask(row.index == "difference", -row["difference"]) if of_task else row
    (shown,) = pd.DataFrame([signed]).rename_axis("label").reset_index().itertuples()
    what = "Accuracy" if of_task else NAMES[family.metric].capitalize()
    unit = "" if of_task else f" {UNITS.get(family.metric, 'nats/token')}"
    return f"{what} on {family.task or family.runs['test_set'].iloc[0]}: {difference_text(shown)}{unit}"
