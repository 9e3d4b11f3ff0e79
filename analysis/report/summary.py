"""Text of a report about its runs: title, paragraph, machines, versions, missing parts."""

from __future__ import annotations

import json
from collections.abc import Callable

import pandas as pd

from analysis import units
from analysis.gallery import ReportFigure
from analysis.plotting.captions import seeds_text


def title(runs: pd.DataFrame) -> str:
    """Return the title of a report: the names of its experiments."""
    return units.listing(runs["experiment"].unique(), limit=4)


def count(n: int, what: str) -> str:
    """Format a count as "1 run" or "2 runs"."""
    return f"{n} {what}{'s' * (n != 1)}"


def paragraph(runs: pd.DataFrame, labels: pd.Series) -> str:
    """Summarise models, text, training and testing in one paragraph."""

    def values(column: str, show: Callable = str) -> str:
        return units.listing(show(value) for value in runs[column].dropna().unique())

    models = units.listing(labels)
    verb = "compared over" if runs["label"].nunique() > 1 else "in"
    return (
        f"{models}, {verb} {count(len(runs), 'run')} ({seeds_text(runs['seed'].dropna())}), "
        f"trained on {values('training_set')} ({_training_text(runs, values)}) "
        f"for at most {values('planned_steps', units.whole)} steps of "
        f"{values('tokens_per_step', units.whole)} tokens, context {values('seq_len', units.whole)}. "
        f"{_tested(runs)}{_yardsticks(runs)}"
    )


def _training_text(runs: pd.DataFrame, values: Callable) -> str:
    """The size of the training text and its tokenizer, or what a synthetic task has instead."""
    entries = values("vocab_size", units.whole)
    if runs["train_split_tokens"].isna().all():
        return f"sequences drawn anew for every step, of {entries} different tokens"
    return (
        f"{values('train_split_tokens', units.engineering)} tokens; tokenizer {values('tokenizer')} with "
        f"{entries} entries"
    )


def _tested(runs: pd.DataFrame) -> str:
    """Describe how the runs were tested, or say that they were not and which loss compares them."""
    tested = runs[runs["test_loss"].notna()]
    if tested.empty:
        return (
            "No test split was scored: the losses compared are those of the last validation while training, "
            f"on text of {units.listing(runs['validation_set'].dropna().unique())}."
        )
    some = "" if len(tested) == len(runs) else f" ({len(tested)} of {count(len(runs), 'run')})"
    strides = units.listing(units.whole(stride) for stride in tested["test_stride"].dropna().unique())
    of_text = tested["chance"].isna().any()
    tokens = units.listing(f"{scored:,}" for scored in sorted(tested["test_tokens"].dropna().unique()))
    each = (
        f"{tokens} tokens of it, each scored once, stride {strides}"
        if of_text
        else "every answer of it scored once"
    )
    return (
        f"Tested{some} on the test split of {units.listing(tested['test_set'].dropna().unique())} with the weights "
        f"of the lowest validation loss: {each}."
    )


def _yardsticks(runs: pd.DataFrame) -> str:
    """State the spread of model sizes and the losses that need no model, each where it is known."""
    found, sizes = "", runs["parameters_non_embedding"].dropna()
    if sizes.nunique() > 1:
        spread = f"{sizes.max() / sizes.min() - 1:.1%}"
        found += f" Parameters beside the embedding: {sizes.min():,} to {sizes.max():,}, {spread} apart."
    entropy = runs["unigram_entropy"].dropna()
    if len(entropy):
        values = units.listing(f"{value:.3f}" for value in sorted(entropy.unique()))
        found += (
            f" Knowing only how frequent each token of the training text is would cost {values} nats/token."
        )
    return found


def blocks(described: object) -> str:
    """Format the blocks of a run as "F attention, S timelines"; described: the column `blocks` of runs."""
    try:
        found = json.loads(described)
        return ", ".join(f"{block['letter']} {block['title']}" for block in found)
    except (TypeError, ValueError, KeyError):
        return units.MISSING


def machines(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row a machine with n_runs, the busiest first."""
    return _with_counts(
        runs, ["gpu", "cpu", "cores", "threads", "capability", "workers", "memory_bytes", "platform"]
    )


def versions(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row a state of the code: commit, tree, versions, n_runs, the busiest first."""
    trees = {"True": "uncommitted changes", "False": "clean"}
    tree = runs["dirty"].astype("str").map(lambda dirty: trees.get(dirty, "not recorded"))
    described = runs.assign(tree=tree, versions=runs["versions"].map(_versions))
    return _with_counts(described, ["commit", "tree", "versions"])


def _with_counts(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    counts = runs.groupby(keys, dropna=False).size().reset_index(name="n_runs")
    return counts.sort_values("n_runs", ascending=False)


def _versions(described: object) -> str:
    try:
        return ", ".join(f"{name} {version}" for name, version in json.loads(described).items())
    except (TypeError, ValueError, AttributeError):
        return units.MISSING


def missing(runs: pd.DataFrame, figures: list[ReportFigure]) -> list[str]:
    """List, one sentence each, the parts of a report that these runs do not support."""
    absent = [figure.title for figure in figures if figure.missing]
    found = []
    if absent:
        found.append(
            f"{len(absent)} of {count(len(figures), 'figure')}, each with its reason at the end of its section: "
            f"{units.listing(absent, limit=60)}."
        )
    for column, what, why in (
        ("mfu", "MFU", "not recorded, or above the peak"),
        ("peak_memory_bytes", "Peak memory", "not recorded"),
    ):
        unknown = int(runs[column].isna().sum())
        if unknown:
            found.append(f"{what} of {unknown} of {count(len(runs), 'run')}: {why}.")
    if runs["gpu"].isna().all():
        found.append("Speed on a GPU: none of these runs used one.")
    return found
