"""Caveats of a comparison: reasons why it may be incomplete or unequal, one sentence each."""

from __future__ import annotations

import json

import pandas as pd

from analysis.caveats import context_use, machines, recipes, speeds, still_falling
from analysis.caveats.recipes import counted
from analysis.comparing import matching, text_uncertainty
from analysis.comparing.comparison_table import FINAL, NAMES, order_metric, scored, with_final_validation
from analysis.loading import probed_steps, selection
from analysis.loading.probe_tables import FOLDER, interrupted, records
from analysis.loading.rate_sweeps import unique_seeds
from analysis.loading.results import Results
from analysis.units import listing, whole

SHOWN = 12
"""The number of problems inside runs that are listed one by one; `Results.problems` has them all."""


def caveats(results: Results) -> list[str]:
    """List every caveat of the comparison, one sentence each; an empty list if it is complete and equal."""
    runs = with_final_validation(results)
    checks = (
        _code,
        machines.caveats,
        speeds.caveats,
        _texts,
        _tokenizers,
        recipes.caveats,
        matching.caveats,
        _duplicates,
    )
    found = _untested(runs) + _seeds(runs) + _unfinished(results.unfinished)
    found += [text for check in checks for text in check(runs)]
    found += [
        *recipes.rate_caveats(runs, results.selection),
        *selection.caveats(results.selection),
        *still_falling.caveats(results),
        *context_use.caveats(results),
        *text_uncertainty.caveats(runs, results.table("documents")),
    ]
    return found + _probes(results) + probed_steps.caveats(results) + _other_problems(results)


def _untested(runs: pd.DataFrame) -> list[str]:
    """Caveats about runs without a test loss, or without the loss that orders the models."""
    metric, unique = order_metric(runs), unique_seeds(runs)
    found = []
    if runs["test_loss"].isna().all():
        found.append(
            "no test split was scored: models are compared by the validation loss at the end of training, which "
            "may cover a part of its split. Add test to evaluate.splits."
        )
    without = unique[~unique.index.isin(scored(unique).index)]
    if len(without):
        each = (f"{row.label} seed {whole(row.seed)} ({row.run})" for row in without.itertuples())
        found.append(f"no {NAMES[metric]}, so not counted as a seed: {listing(each)}.")
    of_text = runs[runs["task"].isna()]
    if metric == FINAL and of_text[["tokenizer", "vocab_size"]].drop_duplicates().shape[0] > 1:
        found.append("the order of the models means nothing: their losses are per token of mixed tokenizers.")
    return found


def _seeds(runs: pd.DataFrame) -> list[str]:
    """Caveats about the number of seeds scored by the metric that ranks the models."""
    seeds = (
        scored(unique_seeds(runs)).groupby("label")["seed"].agg(lambda values: tuple(sorted(values.dropna())))
    )
    alone = [label for label, values in seeds.items() if len(values) < 2]
    if len(alone) == len(seeds):
        return [
            "one seed: no interval. Repeat the runs with other seeds to see how far chance alone moves them."
        ]
    found = [f"one seed: no interval for {listing(alone)}."] if alone else []
    if any(len(values) == 2 for values in seeds):
        found.append("two seeds: the 95 % interval is wide (the mean ± 12.7 standard errors).")
    if not alone and seeds.nunique() > 1:
        found.append("the models were not trained with the same seeds.")
    return found


def _unfinished(unfinished: pd.DataFrame) -> list[str]:
    words = {
        "failed": "failed",
        "incomplete": "not complete",
        "broken": "cannot be read",
        "foreign": "not a run",
    }
    found = []
    for status, word in words.items():
        group = unfinished[unfinished["status"] == status]
        if len(group):
            each = (f"{row.experiment}/{row.run} ({row.reason})" for row in group.itertuples())
            count = "1 run" if len(group) == 1 else f"{len(group)} runs"
            count = count.replace("run", "folder") if status in ("broken", "foreign") else count
            found.append(f"{count} {word}: {listing(each, limit=4)}.")
    return found


def _code(runs: pd.DataFrame) -> list[str]:
    found = []
    commits = runs["commit"].str.slice(0, 10).fillna("no commit recorded")
    if commits.nunique() > 1:
        found.append(f"runs from different commits: {counted(commits)}.")
    elif runs["commit"].isna().all():
        found.append("no commit recorded: these results cannot be traced to a version of the code.")
    dirty = int(runs["dirty"].fillna(False).sum())
    if dirty:
        which = "the runs" if dirty == len(runs) else f"{dirty} of {len(runs)} runs"
        found.append(
            f"uncommitted changes: {which} came from a dirty working tree, which no commit describes."
        )
    if runs["versions"].nunique() > 1:
        found.append(
            "runs with different versions of Python or the libraries; see the table of runs' machines."
        )
    return found


def _texts(runs: pd.DataFrame) -> list[str]:
    """Caveats about texts; several synthetic tasks are none, as models are compared within each."""
    return recipes.within_tasks(runs, _one_text)


def _one_text(runs: pd.DataFrame) -> list[str]:
    found = []
    for column, what in (("training_set", "training sets"), ("test_set", "test sets")):
        if runs[column].nunique() > 1:
            found.append(f"mixed {what}: {counted(runs[column])}.")
    same_names = runs[["training_set", "test_set", "tokenizer", "vocab_size"]].drop_duplicates().shape[0] == 1
    if same_names and runs["data_fingerprint"].nunique() > 1:
        found.append("the text behind these names differs between runs (different content fingerprints).")
    return found


def _tokenizers(runs: pd.DataFrame) -> list[str]:
    runs = runs[runs["task"].isna()]
    tokenizer = runs["tokenizer"].astype("str") + " " + runs["vocab_size"].map(whole).astype("str")
    if tokenizer.nunique() > 1:
        return [
            f"mixed tokenizers: {counted(tokenizer)}. Loss and perplexity per token cannot be compared; "
            "bits per byte and word perplexity can."
        ]
    return []


def _duplicates(runs: pd.DataFrame) -> list[str]:
    repeated = len(runs) - len(unique_seeds(runs))
    return [f"{repeated} run(s) occur in more than one folder and are counted once."] if repeated else []


def _probes(results: Results) -> list[str]:
    """Caveats about interrupted or differing passes of job=probe."""
    found = []
    halves = interrupted(results)
    if halves:
        found.append(
            f"an interrupted pass of the probes: {FOLDER}/ of {listing(halves)} may hold tables of two. "
            "job=probe makes them anew."
        )
    if len({_settings(text) for text in records(results)} - {None}) > 1:
        found.append("runs were probed with different settings; they stand with each run's config.")
    return found


def _settings(text: str | None) -> str | None:
    """The probe settings in a record, as sorted JSON; None if the record is missing or damaged."""
    try:
        return None if text is None else json.dumps(json.loads(text)["settings"], sort_keys=True)
    except (ValueError, KeyError, TypeError):
        return None


def _other_problems(results: Results) -> list[str]:
    """Problems inside complete runs; those of unfinished folders have their own notice."""
    prefixes = tuple(f"{row.experiment}/{row.run}:" for row in results.unfinished.itertuples())
    inside = [text + "." for text in results.problems if not prefixes or not text.startswith(prefixes)]
    more = len(inside) - SHOWN
    return inside[:SHOWN] + (
        [f"{more} more problems of this kind: see load_results(...).problems."] * (more > 0)
    )
