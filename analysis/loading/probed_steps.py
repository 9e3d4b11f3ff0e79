"""Of which training step the weights were that probes looked at."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from analysis.loading.results import Results
from analysis.units import listing, whole


def probed_steps(results: Results, runs: Collection[str] = ()) -> pd.Series:
    """The step by run (the index: experiment, run), of these runs or of all that were probed."""
    rows = results.table("measures")
    steps = rows.dropna(subset=["step"]).groupby(["experiment", "run"])["step"].max()
    return steps[steps.index.isin(list(runs), level="run")] if len(runs) else steps


def steps_text(steps: pd.Series) -> str:
    """ "weights of step 1,000", or that there are several, and how many runs each has; "" if none is known."""
    counts = steps.value_counts().sort_index()
    if counts.empty:
        return ""
    if len(counts) == 1:
        return f"weights of step {whole(counts.index[0])}"
    each = (f"{whole(step)} ({n} run{'s' if n > 1 else ''})" for step, n in counts.items())
    return f"weights of different steps: {listing(each)}"


def caveats(results: Results) -> list[str]:
    """Mixed steps: what a figure of the probes shows may then be training, not the model."""
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
