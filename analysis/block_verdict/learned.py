"""What the runs of a verdict say: the block's losses beside those of the transformer and of its relative."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.answer import UNITS, difference_text
from analysis.block_verdict.findings import BETTER, EQUAL, WORSE, Finding
from analysis.block_verdict.measured import Measured
from analysis.comparison import NAMES, order_metric, with_final_validation
from analysis.loading.results import Results
from analysis.rate_sweeps import at_best_rates
from analysis.verdicts import Family, families


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
    what = f"{NAMES[family.metric].capitalize()} on {family.runs['test_set'].iloc[0]}"
    (told,) = pd.DataFrame([row]).rename_axis("label").reset_index().itertuples()
    told = f"{difference_text(told)} {UNITS.get(family.metric, 'nats/token')} against {peer}"
    if pd.isna(row["difference_ci"]):
        return Finding(EQUAL, peer, f"{what}: {told}, one seed: no difference can be told from chance.")
    shown = row["difference_p"] < 0.05
    side = EQUAL if not shown else BETTER if row["difference"] < 0 else WORSE
    verb = {BETTER: "lower", WORSE: "higher", EQUAL: "not shown to differ"}[side]
    lead = f" A lead, no verdict ({row['lead']})." if row["lead"] and shown else ""
    return Finding(side, peer, f"{what}: {verb}, {told} (95 % interval).{lead}")
