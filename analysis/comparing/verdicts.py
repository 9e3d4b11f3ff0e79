"""Differences of models from a baseline, and those of them that are verdicts.

Models are compared in families: those of one experiment, one depth and, of synthetic tasks, one task, each at its best
learning rate; of a task by the share of answers that are wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.comparing.equality import SCORED
from analysis.comparing.learned_tasks import LEARNED, UNLEARNED, accuracies
from analysis.comparing.matching import MATCHED, plain_transformers
from analysis.errors import ResultsError
from analysis.loading.rate_sweeps import at_best_rates
from analysis.significance import Spread, against_baseline, rank_ranges, spread_of
from analysis.units import listing

SEEDS = 3
"""A verdict needs so many seeds of both models."""

COLUMNS = ("baseline", "difference", "difference_ci", "difference_p", "rank_best", "rank_worst", "lead")
_SIZES = ("parameters_non_embedding", "flops_forward")
_TEXT = ["training_set", "test_set", "data_fingerprint", "tokenizer", "vocab_size"]


WRONG = "test_wrong"
"""The metric of tasks, less is better: the share of the test split's answers that are wrong."""


@dataclass(frozen=True)
class Family:
    """Models that are compared with one baseline.

    metric: that of the table, of which less is better. runs: those at each model's best rate that have the metric.
    table: by label, best first, mean, n_seeds, model (the label without rates, and of a task without the task) and
    COLUMNS: the baseline's label (None where there is none), the difference from it with the half width of its interval
    and its corrected p (`against_baseline`), the ranks a model may have (`rank_ranges`; empty for models without an
    interval), and lead, the reasons why a difference is a lead and no verdict. spread: deviations over seeds, in the
    table's order.
    """

    experiment: str
    depth: int
    metric: str
    runs: pd.DataFrame
    table: pd.DataFrame
    spread: Spread

    @property
    def baseline(self) -> str | None:
        """The label of the baseline, None where there is none."""
        return self.table["baseline"].iloc[0]

    @property
    def title(self) -> str:
        """Return what the models of this family share: "sweep, 4 layers", and the synthetic task where it is one."""
        return f"{self.experiment}, {self.depth} layers" + (f", {self.task}" if self.task else "")

    @property
    def task(self) -> str:
        """The synthetic task; "" of text."""
        task = self.runs["task"].iloc[0]
        return "" if pd.isna(task) else task

    def lead(self, one: str, other: str) -> list[str]:
        """Return why a difference between two models is a lead and no verdict: `terms`, or a task not learned."""
        reasons = self.terms(one, other)
        if self.metric == WRONG and accuracies(self.runs)[[one, other]].max() < LEARNED:
            reasons.append(UNLEARNED)
        return reasons

    def terms(self, one: str, other: str) -> list[str]:
        """Return in what two models were not compared on equal and sufficient terms (`lead_reasons`)."""
        pair = self.runs.drop_duplicates("label").set_index("label").loc[[one, other]]
        return lead_reasons(pair, self.table.loc[[one, other], "n_seeds"], self.metric)


def families(runs: pd.DataFrame, metric: str, baseline: str | None = None) -> list[Family]:
    """Compare the models of every experiment, depth and synthetic task by a metric of which less is better.

    Tasks are compared by WRONG where the metric is the test loss.

    runs: `analysis.comparing.comparison_table.with_final_validation`, or Results.runs. baseline: a label, with or
    without rates, or a model's name, of a task without the task; where it is None, or a family does not have it, the
    plain transformer, if there is just one. Raises ResultsError for a baseline that is in no family.
    """
    chosen = at_best_rates(runs)
    chosen = chosen.assign(**{WRONG: 1 - chosen["test_accuracy"]})
    chosen = chosen[chosen[metric].notna()]
    home = chosen.groupby("label")["experiment"].transform("first")
    keyed = chosen.assign(experiment=home, text=chosen["training_set"].where(chosen["task"].notna(), ""))
    groups = keyed.groupby(["experiment", "depth", "text"], sort=False, dropna=False)
    parts = [(group.drop(columns="text"), _named(group, baseline)) for _, group in groups]
    if baseline is not None and not any(named.any() for _, named in parts):
        known = listing(chosen["label"].drop_duplicates(), limit=40)
        raise ResultsError(f"no model '{baseline}' to compare with; baseline= takes one of {known}")
    return [_family(group, _metric(group, metric), named) for group, named in parts]


def _metric(runs: pd.DataFrame, metric: str) -> str:
    """The metric of a family: of a task's that was tested WRONG."""
    return WRONG if metric.startswith("test_") and runs[WRONG].notna().all() else metric


def _named(runs: pd.DataFrame, baseline: str | None) -> pd.Series:
    """Return the family's runs that the baseline names: by label, else by the label without rates, else by name."""
    for column in ("label", "model", "name"):
        found = runs[column] == baseline
        if found.any():
            return found
    return pd.Series(False, index=runs.index)


def _family(runs: pd.DataFrame, metric: str, named: pd.Series) -> Family:
    means = runs.groupby("label")[metric].mean().sort_values(kind="stable")
    models = runs.drop_duplicates("label").set_index("label").loc[means.index]
    spread = spread_of([runs.loc[runs["label"] == one, metric].to_numpy("float64") for one in means.index])
    table = pd.DataFrame({"model": models["model"], "mean": means, "n_seeds": spread.counts})
    label = _baseline(models, runs.loc[named, "label"])
    table = table.assign(baseline=label, **_differences(spread, means.index, label), **_ranks(spread))
    first = runs.iloc[0]
    family = Family(first["experiment"], first["depth"], metric, runs, table, spread)
    leads = "" if label is None else ["; ".join(family.lead(label, one)) for one in table.index]
    return replace(family, table=table.assign(lead=leads))


def _differences(spread: Spread, labels: pd.Index, baseline: str | None) -> dict[str, np.ndarray]:
    names = ("difference", "difference_ci", "difference_p")
    if baseline is None:
        return dict.fromkeys(names, np.full(len(labels), np.nan))
    return dict(zip(names, against_baseline(spread, labels.get_loc(baseline)), strict=True))


def _ranks(spread: Spread) -> dict[str, pd.Series]:
    """The ranks of models; empty for those that can be compared with no other, as no deviation over seeds is known."""
    one, other = np.indices((len(spread.means), len(spread.means)))
    known = (~np.isnan(spread.errors(one, other)[0]) & (one != other)).any(axis=1)
    return {
        name: pd.array(np.where(known, ranks, np.nan), dtype="Int64")
        for name, ranks in zip(("rank_best", "rank_worst"), rank_ranges(spread), strict=True)
    }


def _baseline(models: pd.DataFrame, named: pd.Series) -> str | None:
    """The label that was named, else that of the only plain transformer; None for one model alone.

    Of several plain ones (one with QK-norm, say) the only one without options of its own.
    """
    if len(models) < 2:
        return None
    if len(named):
        return _only(named.drop_duplicates())
    plain = models[plain_transformers(models)]
    return _only(plain.index) or _only(plain.index[plain["name"] == plain["preset"]])


def _only(labels: Iterable[str]) -> str | None:
    """The label, where there is one alone."""
    labels = list(labels)
    return labels[0] if len(labels) == 1 else None


def lead_reasons(models: pd.DataFrame, counts: pd.Series, metric: str) -> list[str]:
    """Return why a difference between two models is a lead and no verdict, each as part of a sentence.

    models: the two, a row each of `at_best_rates`, the one compared with first; counts: their seeds.
    """
    sizes = models[list(_SIZES)].astype("float64")
    apart = (sizes.iloc[1] / sizes.iloc[0] - 1).abs()
    reasons = {
        f"fewer than {SEEDS} seeds": counts.min() < SEEDS,
        "learning rates were not chosen in these runs": (models["rates"] < 2).any(),
        "a best learning rate at the edge of those tried": models["edge"].any(),
        "equal neither in parameters nor in FLOPs": not (apart <= MATCHED).any(),
        "unequal tokens of training": models["tokens"].nunique() > 1,
        "unequal texts": len(models[_TEXT].drop_duplicates()) > 1,
        "unequal parts of the test text": any(models[column].nunique() > 1 for column in SCORED),
        "no test split was scored": not metric.startswith("test_"),
    }
    return [reason for reason, holds in reasons.items() if holds]
