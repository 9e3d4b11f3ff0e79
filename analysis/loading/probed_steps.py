"""Training steps of the weights that were probed."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from analysis.loading.results import Results
from analysis.units import listing, whole


def probed_steps(results: Results, runs: Collection[str] = ()) -> pd.Series:
    """Return the probed step by run (the index: experiment, run), of these runs or of all."""
    rows = results.table("measures")
    steps = rows.dropna(subset=["step"]).groupby(["experiment", "run"])["step"].max()
    return steps[steps.index.isin(list(runs), level="run")] if len(runs) else steps


def steps_text(steps: pd.Series) -> str:
    """Format probed steps as "weights of step 1,000", several with their numbers of runs; "" if none is known."""
    counts = steps.value_counts().sort_index()
    if counts.empty:
        return ""
    if len(counts) == 1:
        return f"weights of step {whole(counts.index[0])}"
    each = (f"{whole(step)} ({n} run{'s' if n > 1 else ''})" for step, n in counts.items())
    return f"weights of different steps: {listing(each)}"


def caveats(results: Results) -> list[str]:
    """Caveats about runs probed at different steps, which then differ by training and not by model alone."""
    steps = probed_steps(results)
    if steps.nunique() < 2:
        return []
    labels = results.runs.set_index(["experiment", "run"])["label"].reindex(steps.index)
    each = (
        f"{whole(step)} of {listing(sorted(group.unique()), limit=4)}"
        for step, group in labels.groupby(steps)
    )
    return [
        f"probes looked at weights of different steps: {listing(each)}. What differs may be how long they trained: "
        "job=probe probe.at=last looks at all after their last step."
    ]
