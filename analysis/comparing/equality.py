"""Terms of a comparison: those that were equal for its models, and those that were not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from analysis.comparing.matching import MATCHED
from analysis.units import engineering, listing, whole


class Equality(NamedTuple):
    """Parts of a sentence: what was equal, and what was not; rates: a sentence on learning rates."""

    equal: list[str]
    unequal: list[str]
    rates: str


class _Term(NamedTuple):
    """A term that must agree: its name in a sentence, the columns, and how one column's values are shown."""

    name: str
    columns: list[str]
    show: Callable[[object], str] | None = None


SCORED = ("test_tokens", "test_stride")
"""Columns that tell which part of a test text was scored, and with how much context."""
_TEXT = (
    _Term("text", ["training_set", "test_set", "data_fingerprint"]),
    _Term("tokenizer", ["tokenizer", "vocab_size"]),
    _Term("context", ["seq_len", "pack"]),
)
_TASK = (_Term("task and its options", ["training_set", "test_set", "data_fingerprint"]),)
_TERMS = (
    _Term("tokens of training", ["tokens"], engineering),
    _Term("tokens a step", ["tokens_per_step"], whole),
    _Term("width", ["d_model"], whole),
    _Term("machine", ["cpu", "gpu", "capability", "threads"]),
)
_SIZES = {
    "parameters_non_embedding": "parameters beside the embedding",
    "flops_forward": "FLOPs a token",
}
_STATE = {"state_bytes_8192": "decode state at 8,192 tokens"}
_STATE_OF_TASK = {"state_bytes_context": "decode state at the task's length"}


def equality(runs: pd.DataFrame, baseline: str | None) -> Equality:
    """Return what was equal for the models and what was not.

    runs: `analysis.loading.rate_sweeps.at_best_rates`, several models. baseline: the label whose sizes the others are
    compared with; None: the smallest.
    """
    equal, unequal = [], []
    of_task = runs["task"].notna().all()
    for term in (*(_TASK if of_task else _TEXT), *_TERMS):
        values = runs[term.columns].drop_duplicates()
        if len(values) == 1:
            equal.append(term.name)
        else:
            found = sorted(values[term.columns[0]].dropna().unique())
            unequal.append(f"{term.name} ({listing(map(term.show, found), 4)})" if term.show else term.name)
    if not of_task and any(runs[column].nunique() > 1 for column in SCORED):
        tokens = sorted(runs["test_tokens"].dropna().unique())
        unequal.append(f"part of the test text that was scored ({listing(map(whole, tokens), 4)} tokens)")
    seeds = runs.groupby("label")["seed"].agg(lambda each: tuple(sorted(each.dropna())))
    (equal if seeds.nunique() == 1 else unequal).append("seeds")
    sizes = _SIZES | (_STATE_OF_TASK if of_task else _STATE)
    for name, agrees in _sizes(runs.drop_duplicates("label").set_index("label"), sizes, baseline):
        (equal if agrees else unequal).append(name)
    return Equality(equal, unequal, _rates(runs))


def _sizes(models: pd.DataFrame, sizes: dict[str, str], baseline: str | None) -> list[tuple[str, bool]]:
    """Sizes with their range over the baseline's, and whether they agree within MATCHED; unknown ones are left out."""
    found = []
    for column, name in sizes.items():
        values = models[column].astype("float64")
        ratios = values / (values.min() if baseline is None else values[baseline])
        low, high = ratios.min(), ratios.max()
        if values.isna().any() or not low > 0:
            continue
        agrees = max(high - 1, 1 - low) <= MATCHED
        found.append(
            (f"{name} (within {MATCHED:.0%})" if agrees else f"{name} ({_range(low, high)})", agrees)
        )
    return found


def _range(low: float, high: float) -> str:
    """Ratios as "0.031 to 2.4 times"."""
    ends = " to ".join(dict.fromkeys(f"{end:.3g}" for end in (low, high)))
    return f"{ends} times"


def _rates(runs: pd.DataFrame) -> str:
    """A sentence on how the learning rates came about."""
    models = runs.drop_duplicates("label")
    rates = listing((f"{rate:g}" for rate in sorted(models["lr"].dropna().unique())), 6)
    if (models["rates"] > 1).all():
        tried = listing(sorted(models["rates"].unique()))
        edge = models.loc[models["edge"], "model"]
        where = f"; at the edge of those tried: {listing(edge, 20)}" if len(edge) else ""
        apart = "selected_among" in runs and runs["selected_among"].notna().all()
        by = f"by other runs{_selecting_seeds(models)}" if apart else "by these runs themselves"
        return f"Learning rates: each model's own, chosen on validation among {tried} {by}{where}."
    if (models["rates"] > 1).any():
        fixed = listing(models.loc[models["rates"] < 2, "model"], 20)
        return f"Learning rates: chosen on validation, but only one was tried for {fixed}."
    studies = models["lr_study"].dropna().unique()
    if len(studies) and models["lr_study"].notna().all():
        return f"Learning rates: each model's own, {rates}, selected on validation in the study {listing(studies, 3)}."
    if models["lr"].nunique() == 1:
        return f"Learning rate: one for all, {rates}, which may suit some models better than others."
    return f"Learning rates: {rates}, none chosen in these runs."


def _selecting_seeds(models: pd.DataFrame) -> str:
    """Return the number of seeds that selected the rates, in brackets; nothing for one."""
    counts = sorted(models["selected_by_seeds"].unique())
    return f" (the two best with {listing(counts)} seeds)" if counts[-1] > 1 else ""
