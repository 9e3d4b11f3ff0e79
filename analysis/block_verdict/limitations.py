"""Limitations of a verdict: sentences on what its runs and measurements cannot tell."""

from __future__ import annotations

import pandas as pd

from analysis.block_verdict.verdict_tables import VerdictTables
from analysis.caveats.machines import place
from analysis.units import engineering, listing, whole


def limitations(tables: VerdictTables, runs: pd.DataFrame | None) -> list[str]:
    """Return a sentence for every limitation of this verdict; runs: those trained for it, if any."""
    found = []
    if runs is not None and len(runs):
        sizes = listing(whole(value) for value in sorted(runs["parameters_non_embedding"].unique()))
        contexts = listing(whole(value) for value in sorted(runs["seq_len"].unique()))
        budgets = listing(engineering(value) for value in sorted(runs["tokens"].unique()))
        found = [
            f"Larger models: these have {sizes} parameters beside the embedding.",
            f"Longer training: each run saw {budgets} tokens; an order may turn with more.",
            f"Longer contexts: trained with {contexts} tokens.",
            f"Losses elsewhere: trained on {listing(place(runs).unique())}; another processor rounds otherwise, as if "
            "seeds were others, and may show a difference that is not shown here, or not show one that is.",
        ]
        if runs["chance"].isna().all():
            found.append("Recall, state tracking and other abilities: only a text was trained on here.")
    if not tables.speeds.empty:
        lengths = listing(whole(value) for value in sorted(tables.speeds["tokens"].unique()))
        machines = listing(tables.speeds["machine"].unique())
        found.append(
            f"Speed elsewhere: measured at {lengths} tokens, batch 1, on {machines}, in one process; another may lie "
            "outside these intervals by some per cent."
        )
        if (tables.speeds["device"] == "cpu").all():
            found.append("Speed on a GPU: unmeasured.")
    return [*found, "Other options: the block was taken with its defaults."]
