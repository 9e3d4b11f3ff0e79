"""The verdicts of a comparison: which models differ from the baseline, by how much, and the answer in sentences.

Models are compared in families: those of one experiment, one depth and, for synthetic tasks, one task, each at its
best learning rate. Of a task the share of wrong answers is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.comparing.equal_terms import MATCHED, SCORED, Equality, equality, plain_transformers
from analysis.files import MISSING, ResultsError, difference_decimals, engineering, listing, signed, whole
from analysis.loading.probes import at_best_rates
from analysis.statistics import (
    DocumentDifference,
    Spread,
    against_baseline,
    estimate,
    over_documents,
    paying_correlation,
    rank_ranges,
    seed_correlation,
    seeds_needed,
    spread_of,
)

# Whether models have learned a synthetic task: where none has, its setting does not count (docs/tasks.md).

LEARNED = 0.95
"""A model has learned a task where so many answers of the test split are right, on average over its seeds."""

UNLEARNED = f"neither has {LEARNED:.0%} of the answers right"
"""Why a difference between two models tells little: what either knows of the task may not be its rule."""


def accuracies(runs: pd.DataFrame) -> pd.Series:
    """Return the share of right answers of every model by label, the mean over its runs, the best first."""
    return runs.groupby("label")["test_accuracy"].mean().sort_values(ascending=False, kind="stable")


def any_learned(runs: pd.DataFrame) -> bool:
    """Return whether a model of these runs, all on one task, has learned it."""
    return bool((accuracies(runs) >= LEARNED).any())


# Families of models, and their differences from the baseline.

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

    runs: `analysis.comparing.tables.with_final_validation`, or Results.runs. baseline: a label, with or
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
        is_baseline = runs[column] == baseline
        if is_baseline.any():
            return is_baseline
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


# Levels beside a synthetic task's accuracies: chance, copying without a key, a memory of training.

LEVELS = {"chance": "chance", "shortcut": "copying", "memorised": "memory"}
"""Columns of ``Results.runs`` with the levels of a run's task, and the word for each; equal for all seeds."""

MARGIN = 0.01
"""A level counts from so much above the others: two standard errors of 10,000 answers, and what a figure can show."""


def known_levels(rows: pd.DataFrame) -> dict[str, float]:
    """Return the levels of a task, by word: chance, and of the others those that get more than all before by MARGIN.

    rows: runs on the task, with the columns of LEVELS; what was not measured is left out.
    """
    levels: dict[str, float] = {}
    for column, word in LEVELS.items():
        share = rows[column].iloc[0] if column in rows else float("nan")
        if pd.notna(share) and (not levels or share - max(levels.values()) >= MARGIN):
            levels[word] = float(share)
    return levels


def levels_by_task(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return `known_levels` of every task of a table with a column of that name, by task in alphabetical order."""
    return {task: known_levels(rows) for task, rows in table.groupby("task")}


def levels_text(levels: dict[str, float], digits: str = ".3f") -> str:
    """Name levels: "chance 0.031, copying 0.381"."""
    return ", ".join(f"{word} {share:{digits}}" for word, share in levels.items())


# What the choice of the test text adds to the uncertainty, where runs were scored by document.

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
    over = text_differences(family, documents)
    errors = [one.error for one in over.values() if np.isfinite(one.error)]
    if not errors:
        return []
    places = np.arange(len(family.table))
    seeds, _ = family.spread.errors(places, np.full_like(places, family.table.index.get_loc(family.baseline)))
    beside = f" (over seeds: {np.nanmax(seeds):.2g})" if np.isfinite(seeds).any() else ""
    zero = [label for label, one in over.items() if one.low <= 0 <= one.high]
    mixed = listing(zero, 20) if zero else "none"
    return [
        f"Another test text of this kind would also move differences: over the {next(iter(over.values())).documents} "
        f"documents of this one their standard error is at most {max(errors):.2g} nats/token{beside}. Over documents, "
        f"with these seeds, the 95 % bootstrap interval contains zero for: {mixed}."
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
            f"a small test split: its documents count as {numbers.min():.0f} of equal length, fewer than {FEWEST}. "
            "Other documents may move differences by more than other seeds do."
        ]
    tokens = runs["test_tokens"].dropna()
    if tokens.empty or tokens.min() >= SHORTEST:
        return []
    return [
        f"a small test split: {whole(tokens.min())} tokens were scored, fewer than {engineering(SHORTEST)}. Another "
        "text of this kind may move differences by more than other seeds do."
    ]


# The answer in sentences.

UNITS = {"test_bits_per_byte": "bits/byte", WRONG: "of the answers"}
LONGEST = 240
"""Characters of names in a sentence; of more it has the first three."""

SMALL = 0.01
"""The difference, in the metric's unit, for which the seeds needed are told: 0.01 nats/token is 1 % of perplexity, and
0.01 of the answers one in a hundred."""


class Answer(NamedTuple):
    """Sentences on one family of models: findings, terms (what was equal) and method; title: the family's name.

    accuracies: of a synthetic task, the sentence on its right answers.
    """

    title: str
    accuracies: list[str]
    findings: list[str]
    terms: list[str]
    method: list[str]

    @property
    def sentences(self) -> list[str]:
        """All sentences in their order."""
        return self.accuracies + self.findings + self.terms + self.method


def rank_text(row: tuple) -> str:
    """Format the places that a model may have: "1", or "2–6"."""
    if pd.isna(row.rank_best):
        return MISSING
    return "–".join(dict.fromkeys(str(place) for place in (row.rank_best, row.rank_worst)))


def difference_text(row: tuple) -> str:
    """Format the difference from the baseline with its interval: "−0.031 ± 0.019"."""
    if row.label == row.baseline:
        return "baseline"
    if pd.isna(row.difference):
        return MISSING
    if pd.isna(row.difference_ci):
        return signed(row.difference, 4)
    decimals = difference_decimals(row.difference, row.difference_ci)
    return f"{signed(row.difference, decimals)} ± {row.difference_ci:.{decimals}f}"


def answers(families: Iterable[Family], documents: pd.DataFrame | None = None) -> list[Answer]:
    """Answer for every family of two models or more; titles only where there are several families.

    documents: ``Results.table("documents")``, for what the choice of the test text adds.
    """
    several = [family for family in families if len(family.table) > 1]
    return [
        Answer(
            family.title if len(several) > 1 else "",
            _accuracies(family),
            _findings(family),
            _terms(equality(family.runs, family.baseline)),
            _method(family) + ([] if documents is None else sentence(family, documents)),
        )
        for family in several
    ]


def _terms(terms: Equality) -> list[str]:
    return [f"Equal: {listing(terms.equal, 12)}. Not equal: {listing(terms.unequal, 12)}.", terms.rates]


def _unit(family: Family) -> str:
    return UNITS.get(family.metric, "nats/answer" if family.task else "nats/token")


def _accuracies(family: Family) -> list[str]:
    """The sentence on the shares of right answers of a synthetic task."""
    if family.metric != WRONG:
        return []
    by_label = {label: rows["test_accuracy"] for label, rows in family.runs.groupby("label")}
    each = (
        f"{name} {accuracy_text(*estimate(by_label[label])[:2])}"
        for label, name in _names(family.table).items()
    )
    levels = levels_text(known_levels(family.runs))
    return [f"Right answers ({levels}): {listing(each, 40)}."]


def accuracy_text(mean: float, half_width: float) -> str:
    """Format an accuracy and its interval as "0.973 ± 0.012"; without an interval the mean alone."""
    if math.isnan(mean):
        return MISSING
    return f"{mean:.3f}" + ("" if math.isnan(half_width) else f" ± {half_width:.3f}")


def _findings(family: Family) -> list[str]:
    table = family.table.assign(shown=_names(family.table))
    first = _first_places(family, table["shown"])
    if family.baseline is None:
        best = table["shown"].iloc[0]
        return [
            *(first or [f"{best} has the best mean, which seeds do not tell from chance."]),
            "No baseline: these models include no plain transformer, or more than one. Name one with "
            f"baseline=LABEL, such as baseline='{table.index[0]}'.",
        ]
    name = table.loc[family.baseline, "shown"]
    others = table.drop(family.baseline)
    unknown = others["difference_ci"].isna()
    if (table["n_seeds"] < 2).all():
        return [_chance(others, name)]
    differs = others["difference_p"] < 0.05
    sentences = _better_and_worse(others[differs], name, _unit(family))
    tied = others[~differs & ~unknown]
    if len(tied):
        sentences.append(_tied(tied, name, _unit(family)))
    alike = unknown & (others["difference"] == 0) & (others["n_seeds"] > 1)
    for which, what in (
        (alike, f"Equal to {name} in every seed"),
        (unknown & ~alike, "Not compared, because seeds are too few or do not differ"),
    ):
        if which.any():
            sentences.append(f"{what}: {_listed(others.loc[which, 'shown'])}.")
    return sentences + first


def _listed(names: pd.Series, shown: Iterable[str] | None = None) -> str:
    """Models in a sentence, by their names or as `shown`: twenty, or three where names are long, as a sweep's are."""
    most = 20 if names.str.len().sum() < LONGEST else 3
    return listing(names if shown is None else shown, most)


def _names(table: pd.DataFrame) -> pd.Series:
    """Names for sentences: labels without learning rates where these are unique."""
    return table["model"].where(~table["model"].duplicated(keep=False), table.index.to_series())


def _chance(others: pd.DataFrame, baseline: str) -> str:
    """The sentence for models of which no deviation over seeds is known."""
    sides = {
        "ahead": others.loc[others["difference"] < 0, "shown"],
        "behind": others.loc[others["difference"] >= 0, "shown"],
    }
    named = "; ".join(f"{side}: {_listed(names)}" for side, names in sides.items() if len(names))
    return f"With one seed per model, no difference from {baseline} can be told from chance (on that seed, {named})."


def _better_and_worse(rows: pd.DataFrame, baseline: str, unit: str) -> list[str]:
    """A sentence for the models that are better, one for those that are worse; leads have theirs, by reason."""
    sentences = []
    for lead, group in sorted(rows.groupby("lead"), key=lambda pair: pair[0]):
        for better, verb in ((True, "is better than"), (False, "is worse than")):
            side = group[(group["difference"] < 0) == better]
            if side.empty:
                continue
            verb = ("is ahead of" if better else "is behind") if lead else verb
            each = [
                _difference(row, unit if place == 0 else "") for place, row in enumerate(side.itertuples())
            ]
            verdict = f"{side['shown'].iloc[0]} {verb} {baseline} {each[0]}{_rest(side, each)}"
            sentences.append(f"{verdict}. {_only_a_lead(lead)}" if lead else f"{verdict}.")
    return sentences


def _only_a_lead(reasons: str) -> str:
    """The sentence after a difference that is shown but proves little."""
    return f"This is a lead, not a verdict: {reasons}."


def _rest(side: pd.DataFrame, each: list[str]) -> str:
    """The models after the first, which are no losers of it: ", and so are mesanet by 0.14 (...) and ..."."""
    rest = [f"{name} {amount}" for name, amount in zip(side["shown"].iloc[1:], each[1:], strict=True)]
    return (
        f", and so {'is' if len(rest) == 1 else 'are'} {_listed(side['shown'].iloc[1:], rest)}"
        if rest
        else ""
    )


def _difference(row: tuple, unit: str) -> str:
    """A difference and its interval as "by 0.031 nats/token (0.012 to 0.050)", both above zero."""
    size, half = abs(row.difference), row.difference_ci
    digits = difference_decimals(size, half)
    interval = f"{size - half:.{digits}f} to {size + half:.{digits}f}"
    return f"by {size:.{digits}f} {unit} ({'95 % interval ' if unit else ''}{interval})".replace("  ", " ")


def _tied(rows: pd.DataFrame, baseline: str, unit: str) -> str:
    """The sentence on models that are not shown to differ, with the least difference that would have been."""
    ends = rows["difference_ci"].min(), rows["difference_ci"].max()
    span = " to ".join(dict.fromkeys(f"{end:.{difference_decimals(end, end)}f}" for end in ends))
    return (
        f"Not shown to differ from {baseline}: {_listed(rows['shown'])} "
        f"(differences below {span} {unit} cannot be told from chance here)."
    )


def _first_places(family: Family, shown: pd.Series) -> list[str]:
    """The sentence on the models that may be the first; none where no model has a rank."""
    table = family.table
    first = table.index[table["rank_best"] == 1]
    if len(first) == 0:
        return []
    if table.loc[first[0], "rank_worst"] > 1:
        names = _listed(shown[first])
        return [
            f"May be the best: {names}. Every pair was compared, and no model is shown to be better than these."
        ]
    leads = dict.fromkeys(reason for other in table.index[1:] for reason in family.lead(first[0], other))
    if leads:
        return [
            f"{shown[first[0]]} is ahead of every other model, every pair compared. {_only_a_lead('; '.join(leads))}"
        ]
    return [f"{shown[first[0]]} is better than every other model, every pair compared."]


def _method(family: Family) -> list[str]:
    """Sentences on how it was decided; none where no deviation over seeds is known."""
    spread, unit, models = family.spread, _unit(family), len(family.table)
    if not spread.degrees or not (spread.deviations > 0).any():
        return []
    deviation = math.sqrt(spread.variance)
    needed = [_needed(deviation, models, unit)] if deviation > 0 else []
    return [_intervals(family, deviation, unit), *needed, *_pairing(family)]


def _intervals(family: Family, deviation: float, unit: str) -> str:
    spread = family.spread
    if spread.pooled:
        how = (
            f"Standard deviation over seeds, one for all models: {deviation:.2g} {unit} ({spread.degrees} degrees of "
            "freedom; Cochran's test finds no model noisier than the others"
            + (f", p = {spread.unequal:.2g}" if spread.unequal == spread.unequal else "")
            + "). Intervals are from Dunnett's test"
        )
    else:
        apart = list(family.table.index[spread.apart])
        verb, each = ("is", "it") if len(apart) == 1 else ("are", "each")
        shared = (
            f"The others share one, {deviation:.2g} {unit} ({spread.degrees} degrees of freedom), in which a noisier "
            "model counts as if it were just not too noisy"
            if deviation > 0
            else "Seeds of the others made no difference"
        )
        how = (
            f"{listing(apart, 12)} {verb} noisier over seeds than the others (Cochran's test, p = {spread.unequal:.2g})"
            f": {each} has its own standard deviation and wide intervals, which more seeds would narrow. {shared}. "
            "Intervals are from Welch's test with Bonferroni's correction"
        )
    return (
        f"{how}. Together they contain all true differences in 95 % of studies whose models are equally noisy, and "
        "in 80 to 95 % where one model is three times as noisy and few seeds do not show it (docs/comparing.md). Ranks "
        "come from another test, of every pair of models with Holm's correction. So a model may differ from the "
        "baseline and still share its rank; among few models, it may have another rank although its interval contains "
        "zero."
    )


def _needed(deviation: float, models: int, unit: str) -> str:
    seeds = seeds_needed(SMALL, deviation, models)
    number = "more than 10,000" if seeds is None else f"{seeds:,}"
    return f"To show a difference of {SMALL} {unit} with a power of 80 % takes {number} seeds of each model."


def _pairing(family: Family) -> list[str]:
    values = family.runs.pivot_table(index="label", columns="seed", values=family.metric).to_numpy("float64")
    common = ~np.isnan(values).any(axis=0)
    correlation = seed_correlation(values)
    if math.isnan(correlation):
        return []
    pays = paying_correlation(len(values), int(common.sum()))
    what = "Wrong answers" if family.metric == WRONG else "Losses"
    return [
        f"{what} of the same seed have a correlation of {correlation:.2f} between models. Pairing by seed would pay "
        f"above {pays:.2f}; it was not used: differences are of means."
    ]
