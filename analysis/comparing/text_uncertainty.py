"""Uncertainty that the choice of the test text adds to a comparison, where runs were scored by document."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.comparing.verdicts import Family
from analysis.significance import over_documents
from analysis.significance.documents import DocumentDifference
from analysis.units import engineering, listing, whole

FEWEST = 20
"""Documents, counted as if of equal length, below which intervals over documents are too short (docs/comparing.md)."""

SHORTEST = 10_000
"""Tokens below which a test split is called small where nothing was recorded by document."""


def effective_number(tokens: np.ndarray) -> float:
    """Return how many documents of equal length would be as good: (Σt)²/Σt²; 0 for none."""
    squares = float((tokens.astype("float64") ** 2).sum())
    return float(tokens.sum()) ** 2 / squares if squares else 0.0


def text_differences(family: Family, documents: pd.DataFrame) -> dict[str, DocumentDifference]:
    """Return by label the difference from the baseline over the documents of the test split, seeds averaged.

    documents: ``Results.table("documents")``. Empty without a baseline, where a run was not scored by document, and
    where the documents are not the same.
    """
    rows = documents[documents["split"] == "test"].merge(
        family.runs[["experiment", "run"]], on=["experiment", "run"]
    )
    if family.metric != "test_loss" or family.baseline is None or rows["run"].nunique() < len(family.runs):
        return {}
    tokens = rows.groupby("document")["tokens"].agg(["min", "max"])
    nats = rows.pivot_table(index="label", columns="document", values="nats")
    if (tokens["min"] != tokens["max"]).any() or nats.isna().any(axis=None):
        return {}
    base, counts = nats.loc[family.baseline].to_numpy(), tokens["min"].to_numpy()
    return {
        label: over_documents(nats.loc[label].to_numpy(), base, counts)
        for label in family.table.index
        if label != family.baseline
    }


def sentence(family: Family, documents: pd.DataFrame) -> list[str]:
    """Say how far another text of the kind would move the differences, beside other seeds; [] where it is not known."""
    found = text_differences(family, documents)
    errors = [one.error for one in found.values() if np.isfinite(one.error)]
    if not errors:
        return []
    places = np.arange(len(family.table))
    seeds, _ = family.spread.errors(places, np.full_like(places, family.table.index.get_loc(family.baseline)))
    beside = f", beside {np.nanmax(seeds):.2g} over seeds" if np.isfinite(seeds).any() else ""
    zero = [label for label, one in found.items() if one.low <= 0 <= one.high]
    mixed = listing(zero, 20) if zero else "none"
    return [
        f"Another test text of the kind would move differences too: over the {next(iter(found.values())).documents} "
        f"documents of this one their standard error is at most {max(errors):.2g} nats/token{beside}. With these seeds "
        f"and other documents, zero is inside the 95 % interval (bootstrap over documents) of: {mixed}."
    ]


def caveats(runs: pd.DataFrame, documents: pd.DataFrame) -> list[str]:
    """Caveats about small test splits: few documents, or few tokens where no run was scored by document."""
    test = documents[documents["split"] == "test"].drop_duplicates(["experiment", "run", "document"])
    numbers = test.groupby(["experiment", "run"])["tokens"].agg(
        lambda tokens: effective_number(tokens.to_numpy())
    )
    if len(numbers):
        if numbers.min() >= FEWEST:
            return []
        return [
            f"a small test split: its documents are worth {numbers.min():.0f} of equal length, fewer than {FEWEST}; "
            "other documents may move differences by more than other seeds."
        ]
    tokens = runs["test_tokens"].dropna()
    if tokens.empty or tokens.min() >= SHORTEST:
        return []
    return [
        f"a small test split: {whole(tokens.min())} tokens were scored, fewer than {engineering(SHORTEST)}; another "
        "text of the kind may move differences by more than other seeds."
    ]
